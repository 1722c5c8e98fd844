"""The operator's tasks on a cluster: shared by the command line and the console.

The functions work over both protocols, on Coherer's nodes and on Apache's clusters. They return
typed records and print nothing. A value that the cluster does not report is None, never zero.
"""
