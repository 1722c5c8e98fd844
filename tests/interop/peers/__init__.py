"""The real Java TubeMQ, and our own servers, as processes that tests and benchmarks drive."""
