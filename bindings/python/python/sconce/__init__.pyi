"""Types of the package."""

from .classifier import Classifier as Classifier
from .clip import Clip as Clip
from .cross_encoder import CrossEncoder as CrossEncoder
from .errors import (
    CancelledError as CancelledError,
    ClosedError as ClosedError,
    DeviceError as DeviceError,
    FilesError as FilesError,
    InputError as InputError,
    InternalError as InternalError,
    SconceError as SconceError,
    UnsoundError as UnsoundError,
)
from .fastembed import (
    LateInteractionTextEmbedding as LateInteractionTextEmbedding,
    SparseEmbedding as SparseEmbedding,
    SparseTextEmbedding as SparseTextEmbedding,
    TextCrossEncoder as TextCrossEncoder,
    TextEmbedding as TextEmbedding,
)
from .gliner import GLiNER as GLiNER
from .index import Index as Index
from .llm import Answer as Answer, Llm as Llm, Stream as Stream, ToolCall as ToolCall
from .machine import counts as counts, devices as devices, doctor as doctor, plan as plan, set_threads as set_threads
from .multi_vector_encoder import MultiVectorEncoder as MultiVectorEncoder
from .passages import Hit as Hit, IndexedDocument as IndexedDocument, Passage as Passage
from .sentence_transformer import (
    SentenceTransformer as SentenceTransformer,
    quantize_embeddings as quantize_embeddings,
)
from .seq2seq import Seq2Seq as Seq2Seq
from .sparse import SparseMatrix as SparseMatrix, SparseVector as SparseVector
from .sparse_encoder import SparseEncoder as SparseEncoder
from .tagger import Tagger as Tagger
from .texts import to_arrow as to_arrow

__version__: str
__all__: list[str]
