"""Run transformer models on CPU, CUDA and Metal.

The classes of sentence-transformers and fastembed, so that only the import changes; language
models, T5, classification, token classification and CLIP; `Index`, which finds passages of documents;
and what runs where (`plan`, `doctor`, `devices`, `counts`).
"""

import os as _os

from . import _extension  # First: it chooses `_sconce`, which the others import.
from . import _sconce
from .classifier import Classifier
from .clip import Clip
from .cross_encoder import CrossEncoder
from .errors import (
    CancelledError,
    ClosedError,
    DeviceError,
    FilesError,
    InputError,
    InternalError,
    SconceError,
    UnsoundError,
)
from .fastembed import (
    LateInteractionTextEmbedding,
    SparseEmbedding,
    SparseTextEmbedding,
    TextCrossEncoder,
    TextEmbedding,
)
from .gliner import GLiNER
from .index import Index
from .llm import Answer, Llm, Stream, ToolCall
from .machine import counts, devices, doctor, plan, set_threads
from .multi_vector_encoder import MultiVectorEncoder
from .passages import Hit, IndexedDocument, Passage
from .sentence_transformer import SentenceTransformer, quantize_embeddings
from .seq2seq import Seq2Seq
from .sparse import SparseMatrix, SparseVector
from .sparse_encoder import SparseEncoder
from .tagger import Tagger
from .texts import to_arrow
from . import background as _background, index as _index, models as _models

__version__ = _sconce.version()
__all__ = [name for name in dir() if not name.startswith("_") and name[0].isupper()]
__all__ += ["counts", "devices", "doctor", "plan", "quantize_embeddings", "set_threads", "to_arrow"]

# Threads and connections of SQLite do not survive a fork: the child starts its own, and takes new locks. Candle, which runs
# the ops that no kernel of ours takes, has threads of its own for element-wise operations on large
# tensors. They cannot be started again, and a child would wait for them forever; set to one thread,
# Candle starts none.
if hasattr(_os, "register_at_fork"):
    _os.environ.setdefault("CANDLE_NUM_THREADS", "1")
    _os.register_at_fork(before=_index.before_fork)
    for _hook in (_background.after_fork, _models.after_fork, _index.after_fork, _sconce.after_fork):
        _os.register_at_fork(after_in_child=_hook)
