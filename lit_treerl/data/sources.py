"""Where tasks come from: JSONL, parquet and Hugging Face datasets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lit_treerl.data.row_source import RowSource, TaskSource

__all__ = ["HFTasks", "JSONLTasks", "ParquetTasks", "RowSource", "TaskSource"]


class JSONLTasks(RowSource):
    """Tasks from a JSONL file, one object a line.

    Args:
        path: the file.
        data_source: for rows that do not name their own; the file's name when None.
        limit: use the first so many good rows; all when None.
        max_broken: share of broken rows that is left out; more stops the run.
    """

    def __init__(
        self, path: str, data_source: str | None = None, limit: int | None = None, max_broken: float = 0.01
    ) -> None:
        super().__init__(path, data_source or Path(path).stem, limit, max_broken)
        self.path = path

    def rows(self) -> Iterator[tuple[str, Any]]:
        """Parsed lines; blank ones are skipped."""
        with open(_existing(self.path), "rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{self.path}, line {number}", _parse(line)


class ParquetTasks(RowSource):
    """Tasks from a parquet file.

    Args:
        path: the file.
        data_source: for rows that do not name their own; the file's name when None.
        limit: use the first so many good rows; all when None.
        max_broken: share of broken rows that is left out; more stops the run.
    """

    def __init__(
        self, path: str, data_source: str | None = None, limit: int | None = None, max_broken: float = 0.01
    ) -> None:
        super().__init__(path, data_source or Path(path).stem, limit, max_broken)
        self.path = path

    def rows(self) -> Iterator[tuple[str, Any]]:
        """Rows as plain containers, counted from 1."""
        import pyarrow
        import pyarrow.parquet

        try:
            file = pyarrow.parquet.ParquetFile(_existing(self.path))
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{self.path}: is no parquet file ({error})") from None
        with file:
            number = 0
            for batch in file.iter_batches(batch_size=1000):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{self.path}, row {number}", row


class HFTasks(RowSource):
    """Tasks from a Hugging Face dataset.

    Args:
        name_or_dir: name on the hub, or a folder: one made by ``save_to_disk``, or one of data files.
        split: split to read.
        config: configuration of the dataset, where it has several.
        data_source: for rows that do not name their own; the dataset's last name part when None.
        limit: use the first so many good rows; all when None.
        max_broken: share of broken rows that is left out; more stops the run.
    """

    def __init__(
        self,
        name_or_dir: str,
        split: str = "train",
        config: str | None = None,
        data_source: str | None = None,
        limit: int | None = None,
        max_broken: float = 0.01,
    ) -> None:
        super().__init__(f"{name_or_dir} ({split})", data_source or Path(name_or_dir).name, limit, max_broken)
        self.name_or_dir, self.split, self.config = name_or_dir, split, config

    def rows(self) -> Iterator[tuple[str, Any]]:
        """Rows as plain containers, counted from 1."""
        for number, row in enumerate(self._open(), 1):
            yield f"{self.name}, row {number}", row

    def _open(self) -> Iterable[Any]:
        import datasets

        folder = Path(self.name_or_dir)
        if (folder / "dataset_dict.json").is_file():
            splits: Any = datasets.load_from_disk(self.name_or_dir)
            if self.split not in splits:
                raise ValueError(f"{self.name_or_dir} has no split {self.split!r}; it has {', '.join(splits)}")
            return splits[self.split]
        if (folder / "state.json").is_file():
            return datasets.load_from_disk(self.name_or_dir)  # type: ignore[return-value]
        return datasets.load_dataset(self.name_or_dir, self.config, split=self.split)  # type: ignore[return-value]


def _existing(path: str) -> str:
    if not Path(path).is_file():
        raise FileNotFoundError(f"no task file at {path}")
    return path


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:  # bad JSON and bad UTF-8 alike
        return error
