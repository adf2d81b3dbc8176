"""The XCom that tells which job or plan a task works on: the tab in Airflow's web interface reads it."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field

OBJECT_KEY = "edl_object"
"""Key of the XCom, which a task pushes as soon as its stage has begun."""


class TaskObject(BaseModel):
    """A job or a ScalePlan.

    Attributes:
        kind, namespace, name: the object.
        uid: its uid; "" if it did not exist when the stage began.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")
    kind: str = Field(max_length=63)
    namespace: str = Field(max_length=253)
    name: str = Field(max_length=253)
    uid: str = Field(default="", max_length=64)

    @classmethod
    def read(cls, value: object) -> Self | None:
        """The object in an XCom; None if its value has another form, because something else wrote it."""
        try:
            return cls.model_validate(value)
        except ValueError:
            return None
