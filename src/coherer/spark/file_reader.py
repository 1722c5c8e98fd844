"""The reader that Spark calls for files: `files` plans its tasks, `file_rows` reads their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from coherer.spark.file_rows import Section, rows_of
from coherer.spark.files import FileOptions, plan
from coherer.spark.pickling import SentToWorkers
from coherer.spark.planning import Wanted
from coherer.spark.pushdown import is_enabled
from coherer.spark.pushdown import wanted as wanted_by


class SectionShare(InputPartition):
    """The sections of the log that one task reads."""

    def __init__(self, sections: tuple[Section, ...]) -> None:
        super().__init__(sections)
        self.sections = sections


class FileReader(SentToWorkers, DataSourceReader):
    """`spark.read` of files."""

    def __init__(self, options: FileOptions) -> None:
        self._options = options
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        """Look at the consume queues, and divide the log into tasks."""
        return [SectionShare(share) for share in plan(self._options, self._wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of about a megabyte."""
        # Spark converts an empty list of partitions to one InputPartition(None).
        if isinstance(partition, SectionShare):
            for section in partition.sections:
                yield from rows_of(
                    section, self._options.read.columns, self._options.losses, self._tags()
                )

    def _tags(self) -> frozenset[str] | None:
        named, wanted = self._options.tags, self._wanted.tags
        if named is None or wanted is None:
            return wanted if named is None else named
        return named & wanted


class FilteredFileReader(FileReader):
    """The same, with the filters of the query: reads only matching rows."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters; Spark applies all of them, too."""
        self._wanted = wanted_by(filters)
        return filters


def file_reader(options: FileOptions) -> FileReader:
    """The reader that Spark can use with its settings."""
    pushed = options.read.pushdown and is_enabled()
    return FilteredFileReader(options) if pushed else FileReader(options)
