"""The row that gives a file its id. What the file is now, only the workspace knows."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from luxx.store.tables import Base, UtcDateTime


class FileRow(Base):
    """An id for a path of a user's workspace, made when it was uploaded or first listed.

    `path` is bytes, because a name in a file system need not be text; `path_hash` (SHA-256) is unique,
    because a path can be longer than an index takes. `size`, `modified_ns` and `sha256` are as uploaded:
    the hash is true of the file for as long as the other two still agree with it.
    """

    __tablename__ = "files"
    __table_args__ = (UniqueConstraint("user_id", "path_hash"),)

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    path: Mapped[bytes] = mapped_column(LargeBinary)
    path_hash: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger)
    modified_ns: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str | None] = mapped_column(String(64))
    media_type: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
