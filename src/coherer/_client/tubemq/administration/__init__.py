"""Administration of TubeMQ clusters, over HTTP."""
