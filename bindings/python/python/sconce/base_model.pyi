"""`BaseModel`: what the classes with the API of sentence-transformers share."""

from .models import Model

class BaseModel(Model):
    prompts: dict[str, str]
    default_prompt_name: str | None
    max_seq_length: int
    def get_max_seq_length(self) -> int: ...
