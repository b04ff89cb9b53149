"""How many token ids the text of a running sequence shows."""

from __future__ import annotations

from pathlib import Path

from pegboard import LLM, SamplingParams
from pegboard.testing.checkpoints import ByteVocabulary, write_scripted_model

WORDS = b"a@@b"


def test_ids_of_text_that_is_held_back_are_not_shown_yet(tmp_path: Path) -> None:
    vocabulary = ByteVocabulary()
    write_scripted_model(tmp_path, vocabulary.ids(WORDS), prompt_tokens=1)
    seen = []
    with LLM(str(tmp_path), platform="null", max_model_len=64) as llm:
        for output in llm.stream("x", SamplingParams(temperature=0.0, stop=["@@@"], max_tokens=9)):
            item = output.outputs[0]
            seen.append((item.text, item.num_shown, len(item.token_ids)))
    assert seen == [("a", 1, 1), ("a", 1, 2), ("a", 1, 3), ("a@@b", 4, 4), ("a@@b", 5, 5)]
