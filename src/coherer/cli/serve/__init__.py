"""`coherer serve`: its options, its configuration file, and the processes of several brokers."""
