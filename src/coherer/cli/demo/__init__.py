"""`coherer demo`: the main job on real data, and its pipeline on Spark."""
