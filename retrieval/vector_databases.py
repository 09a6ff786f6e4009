"""The vector databases that a corpus may name. Each is opened as a vector store of LangChain.

LangChain's interface fills and searches. It does not tell whether a collection is there, how long its vectors are, and
what they are; these three questions, and how a filter is written, are all that differs here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import DubitoError, ModelFault, UserFault, closest, either, extra_command
from ..models.background import start_in_background
from ..models.provider_faults import one_line
from ..server_url import checked_url, key_for, refuse_secrets
from ..settings import settings
from ..state.where import Condition
from .store_filters import milvus_filter, postgres_filter, qdrant_filter

if TYPE_CHECKING:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore

T = TypeVar("T")

Key = str | int
"""The key of a row in its collection."""


class Database(Protocol):
    """A collection of a vector database, which may not be there yet. Every method blocks."""

    def dimension(self) -> int | None:
        """The length of its vectors; None if there is no such collection."""
        ...

    def make(self, dimension: int) -> None:
        """Make the collection, which compares vectors by their cosine."""
        ...

    def store(self, embeddings: Embeddings) -> VectorStore:
        """The collection, which must be there, as LangChain's vector store."""
        ...

    def put(self, store: VectorStore, keys: list[str], documents: list[Document]) -> None:
        """Store documents; a document with the key of a stored one replaces it."""
        ...

    def key(self, document: Document) -> Key:
        """The key of a document that the store found, taken out of its metadata."""
        ...

    def vectors(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[float]]:
        """The vectors of rows by their keys."""
        ...

    def searching(self, condition: Condition) -> Mapping[str, Any]:
        """The arguments by which the store's search finds only what passes; it may find more."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


@dataclass(frozen=True)
class Kind:
    """A vector database.

    extra: what installs its client; example: the forms of a name; plain_names: collections have names of ASCII letters,
    digits and _ alone.
    """

    title: str
    extra: str
    example: str
    open: Callable[[str, str], Database]
    plain_names: bool = True


@dataclass(frozen=True)
class Place:
    """A collection of a database at a server's URL or in a folder."""

    scheme: str
    at: str
    collection: str

    @classmethod
    def named(cls, name: str) -> Place:
        """The place in `SCHEME:URL#collection` or `SCHEME:FOLDER#collection`; `UserFault` for another form."""
        scheme, _, rest = name.partition(":")
        if scheme not in KINDS:
            known = either([f"{one}:" for one in KINDS])
            raise UserFault(f"dubito knows no vector database '{scheme}:'{closest(scheme, KINDS)}: use {known}.")
        kind = KINDS[scheme]
        refuse_secrets(name)
        at, _, collection = rest.partition("#")
        if not at or not collection:
            raise UserFault(f"'{name}' does not name a collection: write it as {kind.example}.")
        if kind.plain_names and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", collection):
            raise UserFault(
                f"'{collection}' cannot be the name of a collection in {kind.title}: use up to 63 letters, digits and "
                "_, a letter first."
            )
        return cls(scheme, at, collection)

    @property
    def title(self) -> str:
        """The name of the database."""
        return KINDS[self.scheme].title

    def open(self) -> Database:
        """The collection; `UserFault` without the extra, and for a folder that another process has open. Blocks."""
        kind = KINDS[self.scheme]
        try:
            return self.called(lambda: kind.open(self.at, self.collection))
        except ImportError as fault:
            raise UserFault(f"A collection in {kind.title} needs its client: {extra_command(kind.extra)}.") from fault

    def called(self, ask: Callable[[], T]) -> T:
        """What the database answers; its faults are a `ModelFault` if a retry may help, else a `UserFault`."""
        try:
            return ask()
        except (DubitoError, ImportError):
            raise
        except Exception as fault:
            # SQLAlchemy puts a statement and its values around the database's own words
            cause = getattr(fault, "orig", None) or fault
            reason = one_line(str(cause))
            if _is_away(cause):
                raise ModelFault(self.at, f"{self.title} does not answer ({reason})") from fault
            raise UserFault(f"{self.title} at {self.at} refuses: {reason}.") from fault


def names_database(corpus: str) -> bool:
    """Is the corpus a collection of a vector database?"""
    return corpus.partition(":")[0] in KINDS and ":" in corpus


def refuse_unknown_database(name: str) -> None:
    """Raise `UserFault` for a name such as `weaviate:http://host#notes`, of a database that dubito does not know."""
    if re.match(r"[a-z]\w+:[^#]*[:/][^#]*#\w", name) and not names_database(name):
        Place.named(name)


_AWAY = {
    "ConnectionError",
    "InterfaceError",
    "OperationalError",
    "ResponseHandlingException",
    "RpcError",
    "TimeoutError",
}
"""Class names, own or inherited, of the clients' errors if a server is not there."""


def _is_away(fault: BaseException) -> bool:
    if isinstance(status := getattr(fault, "status_code", None), int):
        return status >= 500
    if type(fault).__name__.startswith("Milvus"):
        return getattr(fault, "code", None) == _NOT_CONNECTED
    names = {kind.__name__ for kind in type(fault).__mro__}
    # PostgreSQL says FATAL of a wrong password, and of a database or a user that it does not have
    return bool(names & _AWAY) and ("FATAL" not in str(fault) or "starting up" in str(fault))


_NOT_CONNECTED = 2
"""pymilvus's code."""


class Qdrant:
    """A collection of a Qdrant server or folder, with a single unnamed vector."""

    def __init__(self, at: str, collection: str) -> None:
        import langchain_qdrant  # noqa: F401, PLC0415 - an extra; a missing one is said at once
        from qdrant_client import QdrantClient  # noqa: PLC0415

        self._collection = collection
        if at.startswith(("http://", "https://")):
            self._client = QdrantClient(
                url=checked_url(at, "http://127.0.0.1:6333"),
                api_key=key_for(at, settings().qdrant_api_key) or None,
                timeout=int(settings().timeout_s),
                check_compatibility=False,
            )
            return
        try:
            self._client = QdrantClient(path=at)
        except RuntimeError as fault:
            raise UserFault(in_use(at, "Qdrant")) from fault

    def dimension(self) -> int | None:
        """See `Database.dimension`."""
        if not self._client.collection_exists(self._collection):
            return None
        config = self._client.get_collection(self._collection).config.params.vectors
        unnamed = config.get("") if isinstance(config, dict) else config
        if unnamed is None:
            raise UserFault(
                f"The vectors of the collection '{self._collection}' are named: use one with a single unnamed vector."
            )
        return int(unnamed.size)

    def make(self, dimension: int) -> None:
        """See `Database.make`."""
        from qdrant_client.models import Distance, VectorParams  # noqa: PLC0415

        config = VectorParams(size=dimension, distance=Distance.COSINE)
        self._client.create_collection(self._collection, vectors_config=config)

    def store(self, embeddings: Embeddings) -> VectorStore:
        """See `Database.store`."""
        from langchain_qdrant import QdrantVectorStore  # noqa: PLC0415

        return QdrantVectorStore(self._client, self._collection, embeddings, validate_collection_config=False)

    def put(self, store: VectorStore, keys: list[str], documents: list[Document]) -> None:
        """See `Database.put`."""
        store.add_documents(documents, ids=keys, wait=True)

    def key(self, document: Document) -> Key:
        """See `Database.key`."""
        del document.metadata["_collection_name"]
        key: Key = document.metadata.pop("_id")
        return key

    def vectors(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[float]]:
        """See `Database.vectors`."""
        points = self._client.retrieve(self._collection, keys, with_payload=False, with_vectors=True)
        found: dict[Any, Any] = {point.id: point.vector for point in points}
        return {key: vector[""] if isinstance(vector, dict) else vector for key, vector in found.items()}

    def searching(self, condition: Condition) -> Mapping[str, Any]:
        """See `Database.searching`."""
        return {"filter": qdrant_filter(condition)}

    def close(self) -> None:
        """See `Database.close`."""
        self._client.close()


class Postgres:
    """A table of a PostgreSQL database that has pgvector, in the form of LangChain's `PGVectorStore`."""

    def __init__(self, at: str, collection: str) -> None:
        from langchain_postgres import PGEngine  # noqa: PLC0415 - an extra
        from psycopg import ProgrammingError  # noqa: PLC0415
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415
        from sqlalchemy import create_engine  # noqa: PLC0415

        try:
            place = conninfo_to_dict(at) if re.match("postgres(ql)?://", at) else {}
        except ProgrammingError:
            place = {}
        if not place or "password" in place:  # libpq's own variables and ~/.pgpass have it
            raise UserFault(f"'{at}' is not the URL of a database: write it as in {KINDS['pgvector'].example}.")
        arguments = {"connect_timeout": int(settings().timeout_s), **place}
        self._table = collection
        self._sync = create_engine("postgresql+psycopg://", connect_args=arguments)
        self._async = PGEngine.from_connection_string("postgresql+psycopg://", connect_args=arguments)

    def dimension(self) -> int | None:
        """See `Database.dimension`."""
        column = "SELECT atttypmod FROM pg_attribute WHERE attrelid = to_regclass(:t) AND attname = 'embedding'"
        with self._sync.connect() as connection:
            length: int | None = connection.execute(_sql(column), {"t": f'public."{self._table}"'}).scalar()
        if length == -1:
            raise UserFault(f"The vectors of the table '{self._table}' have no fixed length: give the column one.")
        return length

    def make(self, dimension: int) -> None:
        """See `Database.make`."""
        self._async.init_vectorstore_table(self._table, dimension)

    def store(self, embeddings: Embeddings) -> VectorStore:
        """See `Database.store`."""
        from langchain_postgres import PGVectorStore  # noqa: PLC0415

        return PGVectorStore.create_sync(self._async, embeddings, self._table)

    def put(self, store: VectorStore, keys: list[str], documents: list[Document]) -> None:
        """See `Database.put`."""
        store.add_documents(documents, ids=keys)

    def key(self, document: Document) -> Key:
        """See `Database.key`."""
        return str(document.id)

    def vectors(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[float]]:
        """See `Database.vectors`."""
        rows = f'SELECT langchain_id::text, embedding::real[] FROM public."{self._table}" '  # noqa: S608 - a plain name
        with self._sync.connect() as connection:
            found = connection.execute(_sql(rows + "WHERE langchain_id::text = ANY(:keys)"), {"keys": list(keys)})
            return {key: vector for key, vector in found}  # noqa: C416 - rows are no pairs

    def searching(self, condition: Condition) -> Mapping[str, Any]:
        """See `Database.searching`."""
        return {"filter": postgres_filter(condition)}

    def close(self) -> None:
        """See `Database.close`."""
        self._sync.dispose()
        start_in_background(self._async.close())  # without waiting: it may be called from any thread


def _sql(statement: str) -> Any:  # noqa: ANN401 - of an extra
    from sqlalchemy import text  # noqa: PLC0415

    return text(statement)


class Milvus:
    """A collection of a Milvus server, or of Milvus Lite, which keeps a database in a folder."""

    def __init__(self, at: str, collection: str) -> None:
        # its clients write each fault to the terminal, with its traceback
        for client in ("pymilvus", "milvus_lite", "langchain_milvus", "grpc"):
            logging.getLogger(client).setLevel(logging.CRITICAL)
        import langchain_milvus  # noqa: F401, PLC0415 - an extra; a missing one is said at once
        from pymilvus import MilvusClient  # noqa: PLC0415
        from pymilvus.exceptions import ConnectionConfigException  # noqa: PLC0415

        self._collection = collection
        self._is_server = at.startswith(("http://", "https://"))
        if not self._is_server and not at.endswith(".db"):
            raise UserFault(
                f"'{at}' is neither a server nor a folder of Milvus, whose name ends in .db: write "
                f"{KINDS['milvus'].example}."
            )
        uri = checked_url(at, "http://127.0.0.1:19530") if self._is_server else at
        token = key_for(at, None) if self._is_server else ""
        self._connection = {"uri": uri, "token": token, "timeout": settings().timeout_s}
        if not self._is_server:  # in this process, which takes questions whether it lives for an attack
            self._connection["grpc_options"] = {"grpc.keepalive_time_ms": 2**31 - 1}
        try:
            self._client = MilvusClient(**self._connection)
        except ConnectionConfigException as fault:
            raise UserFault(in_use(at, "Milvus Lite")) from fault

    def dimension(self) -> int | None:
        """See `Database.dimension`."""
        if not self._client.has_collection(self._collection):
            return None
        fields = self._client.describe_collection(self._collection)["fields"]
        lengths = [field["params"]["dim"] for field in fields if field["name"] == "vector"]
        if not lengths:
            raise UserFault(f"The collection '{self._collection}' has no field 'vector': use one that LangChain made.")
        return int(lengths[0])

    def make(self, dimension: int) -> None:
        """See `Database.make`."""
        from pymilvus import DataType  # noqa: PLC0415

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=True)
        schema.add_field("pk", DataType.VARCHAR, max_length=65_535, is_primary=True)
        schema.add_field("text", DataType.VARCHAR, max_length=65_535)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="AUTOINDEX" if self._is_server else "FLAT", metric_type="COSINE")
        self._client.create_collection(self._collection, schema=schema, index_params=index, consistency_level="Strong")

    def store(self, embeddings: Embeddings) -> VectorStore:
        """See `Database.store`."""
        import langchain_milvus  # noqa: PLC0415

        return langchain_milvus.Milvus(
            embeddings, self._collection, connection_args=self._connection, enable_dynamic_field=not self._is_flat()
        )

    def put(self, store: VectorStore, keys: list[str], documents: list[Document]) -> None:
        """See `Database.put`."""
        store.upsert(ids=keys, documents=documents)  # type: ignore[attr-defined]  # its add_documents would add twice

    def key(self, document: Document) -> Key:
        """See `Database.key`."""
        key: Key = document.metadata.pop("pk")
        return key

    def vectors(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[float]]:
        """See `Database.vectors`."""
        rows = self._client.get(self._collection, list(keys), output_fields=["vector"]) if keys else []
        return {row["pk"]: row["vector"] for row in rows}

    def searching(self, condition: Condition) -> Mapping[str, Any]:
        """See `Database.searching`."""
        return {"expr": milvus_filter(condition, flat=self._is_flat())}

    def _is_flat(self) -> bool:
        return not self._client.describe_collection(self._collection)["enable_dynamic_field"]

    def close(self) -> None:
        """See `Database.close`."""
        self._client.close()


def in_use(folder: str, title: str) -> str:
    """The sentence for a folder that one process at a time may use."""
    return (
        f"The folder '{folder}' is open in another process, and {title} lets only one use it: end that process, or "
        "start a server and name its URL."
    )


KINDS: Mapping[str, Kind] = {
    "qdrant": Kind(
        "Qdrant", "qdrant", "qdrant:http://host:6333#collection, or qdrant:FOLDER#collection", Qdrant, plain_names=False
    ),
    "pgvector": Kind("PostgreSQL", "pgvector", "pgvector:postgresql://user@host/database#collection", Postgres),
    "milvus": Kind("Milvus", "milvus", "milvus:http://host:19530#collection, or milvus:FOLDER.db#collection", Milvus),
}
"""By the scheme of a corpus's name."""
