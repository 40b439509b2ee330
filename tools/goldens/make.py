"""Computes the goldens of crates/testkit with the reference implementations. See README.md."""

import argparse
import tempfile
from pathlib import Path

import torch
from transformers.utils import logging

import absolute
import bert
import bidirectional
import classify
import clip
import colbert
import deberta
import decoder_embedders
import decoder_sequence
import decoders
import decoders_own
import eurobert
import gpt_neox
import gte
import jina
import m3
import minilm
import modernbert
import nomic
import outputs
import rerank
import sentence
import seq2seq
import sparse
import static
import t5
import tag
import task_clip
import xlm_roberta_flash

MAKERS = {
    "minilm": minilm.make,
    "bert": bert.make,
    "st": sentence.make,
    "rerank": rerank.make,
    "classify": classify.make,
    "tag": tag.make,
    "sparse": sparse.make,
    "static": static.make,
    "outputs": outputs.make,
    "colbert": colbert.make,
    "m3": m3.make,
    "absolute": absolute.make,
    "modernbert": modernbert.make,
    "t5": t5.make,
    "deberta": deberta.make,
    "decoders": decoders.make,
    "decoders-own": decoders_own.make,
    "gpt-neox": gpt_neox.make,
    "bidirectional": bidirectional.make,
    "eurobert": eurobert.make,
    "decoder-sequence": decoder_sequence.make,
    "seq2seq": seq2seq.make,
    "decoder-embedders": decoder_embedders.make,
    "nomic": nomic.make,
    "gte": gte.make,
    "jina": jina.make,
    "xlm-roberta-flash": xlm_roberta_flash.make,
    "clip": clip.make,
    "task-clip": task_clip.make,
}
GOLDENS = Path(__file__).resolve().parents[2] / "crates" / "testkit" / "goldens"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=GOLDENS, help="where the goldens go"
    )
    parser.add_argument(
        "--work", type=Path, help="keep downloads here, and reuse those already there"
    )
    parser.add_argument("--only", choices=MAKERS, help="make one family")
    args = parser.parse_args()

    # One thread: the order of a sum, and so its last bit, depends on the number of threads.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    logging.disable_progress_bar()

    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for family in [args.only] if args.only else MAKERS:
            print(f"making {family}", flush=True)
            MAKERS[family](args.out, work)


if __name__ == "__main__":
    main()
