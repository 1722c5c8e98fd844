"""The clients of both protocols; `coherer.tubemq` and `coherer.rocketmq` are their public names."""
