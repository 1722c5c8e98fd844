"""A topic as a Spark table: read it, count it, write the result to another topic."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, struct, to_json

import coherer
import coherer.blocking
from coherer.spark import configure

URL = sys.argv[1] if len(sys.argv) > 1 else "tubemq://127.0.0.1:8715"

with coherer.blocking.connect(URL) as client, client.producer("clicks") as producer:
    pages = ("home", "shop", "shop", "about")
    producer.send_many(coherer.Message("clicks", page.encode()) for page in pages * 250)

spark = configure(SparkSession.builder.master("local[2]").appName("clicks")).getOrCreate()
clicks = spark.read.format("tubemq").option("url", URL).option("topic", "clicks").load()
counts = clicks.groupBy(col("value").cast("string").alias("page")).count()
counts.orderBy("page").show()

(
    counts.select(to_json(struct("page", "count")).cast("binary").alias("value"))
    .write.format("tubemq")
    .mode("append")
    .option("url", URL)
    .option("topic", "click_counts")
    .save()
)
spark.stop()
