"""The console: pages in a browser for people who operate a cluster (`coherer console`).

The extra `coherer[console]` installs it. It uses `coherer._administration`, so it works with
Coherer's nodes and with Apache's TubeMQ and RocketMQ clusters. It is a program, not a library:
`coherer console` and `coherer serve --console` start it.
"""
