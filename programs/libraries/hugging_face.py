"""Trainers beside that of Transformers, of tiny models without a download."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from programs import quiet
from programs.evaluated import WASTE, Counts, program

WORDS, ROWS, BATCH = 100, 160, 8


def texts(rows: int = ROWS, seed: int = 0, words: int = 12) -> list[str]:
    """Return lines of random words."""
    draw = random.Random(seed)
    return [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(words)) for _ in range(rows)]


def tokenizer() -> Any:
    """Return a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[UNK]", "[PAD]", "[BOS]", "[EOS]", "[CLS]", "[SEP]"]
    words.train_from_iterator(
        [f"w{number}" for number in range(WORDS)], trainers.WordLevelTrainer(special_tokens=special)
    )
    names = ("unk_token", "pad_token", "bos_token", "eos_token", "cls_token", "sep_token")
    return PreTrainedTokenizerFast(tokenizer_object=words, **dict(zip(names, special, strict=True)))


def language_model() -> Any:
    """Return a decoder of two layers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS + 6, pad_token_id=1, bos_token_id=2, eos_token_id=3, **sizes))


def hooks() -> list[Any]:
    """Return callbacks that run after each update."""
    import torch
    from transformers import TrainerCallback

    def save(path: Path) -> None:
        torch.save({"average": torch.zeros(4_000_000)}, path)

    class Hooks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
            WASTE.update(next(iter(model.parameters())).detach(), save)

    return [Hooks()]


_OPTIONS = {
    **{"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "logging_steps": 5},
    **{"per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH, "dataloader_pin_memory": False},
}
_TRL = {**_OPTIONS, "gradient_checkpointing": False, "bf16": False}


@program("sentence_transformers")
def sentence_embeddings(folder: Path) -> Counts:
    """Train embeddings of sentences on pairs, with an evaluation and a save in each of two epochs."""
    import torch
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
        models,
    )
    from transformers import BertConfig, BertModel

    from datasets import Dataset

    torch.set_num_threads(1)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=WORDS + 6, **sizes)).save_pretrained(folder / "bert")
    tokenizer().save_pretrained(folder / "bert")
    model = SentenceTransformer(modules=[models.Transformer(str(folder / "bert")), models.Pooling(32)])
    train, held = (
        Dataset.from_dict({"anchor": texts(rows, seed), "positive": texts(rows, seed + 1)})
        for rows, seed in ((ROWS, 0), (ROWS // 4, 2))
    )
    options = {**_OPTIONS, "num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    trainer = SentenceTransformerTrainer(
        model,
        SentenceTransformerTrainingArguments(str(folder / "output"), **options),
        train_dataset=train,
        eval_dataset=held,
        loss=losses.MultipleNegativesRankingLoss(model),
        callbacks=hooks(),
    )
    trainer.train()
    return {"train": trainer.state.global_step, "eval": 2 * ROWS // 4 // BATCH}


@program("peft")
def adapter(folder: Path) -> Counts:
    """Train an adapter of low rank with gradients of two batches, evaluate in each epoch, and save it."""
    from peft import LoraConfig, get_peft_model
    from transformers import DataCollatorForLanguageModeling

    from datasets import Dataset

    words, model = tokenizer(), language_model()
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    train, held = (
        Dataset.from_dict({"text": texts(rows, seed)}).map(
            lambda row: words(row["text"]), batched=True, remove_columns=["text"]
        )
        for rows, seed in ((ROWS, 0), (ROWS // 4, 1))
    )
    batches = {"per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH, "num_train_epochs": 2}
    options = {**batches, "gradient_accumulation_steps": 2, "eval_strategy": "epoch", "logging_steps": 5}
    trainer = quiet.hugging_face(folder, model, train, held, callbacks=hooks(), **options)
    trainer.data_collator = DataCollatorForLanguageModeling(words, mlm=False)
    trainer.train()
    model.save_pretrained(folder / "adapter")
    return {"train": trainer.state.global_step, "eval": 2 * ROWS // 4 // BATCH}


@program("trl")
def fine_tuning(folder: Path) -> Counts:
    """Fine-tune with TRL on plain text, with an evaluation in each of two epochs."""
    from trl import SFTConfig, SFTTrainer

    from datasets import Dataset

    options = {**_TRL, "num_train_epochs": 2, "eval_strategy": "epoch", "max_length": 32}
    trainer = SFTTrainer(
        language_model(),
        SFTConfig(str(folder / "output"), **options),
        train_dataset=Dataset.from_dict({"text": texts()}),
        eval_dataset=Dataset.from_dict({"text": texts(ROWS // 4, 1)}),
        processing_class=tokenizer(),
        callbacks=hooks(),
    )
    trainer.train()
    return {"train": trainer.state.global_step, "eval": 2 * ROWS // 4 // BATCH}


@program("trl")
def preferences(folder: Path) -> Counts:
    """Learn preferences with TRL by DPO, beside a frozen model."""
    from trl import DPOConfig, DPOTrainer

    from datasets import Dataset

    pairs = {name: texts(ROWS, seed, 6) for seed, name in enumerate(("prompt", "chosen", "rejected"))}
    trainer = DPOTrainer(
        language_model(),
        ref_model=language_model(),
        args=DPOConfig(str(folder / "output"), **_TRL, num_train_epochs=1, max_length=32),
        train_dataset=Dataset.from_dict(pairs),
        processing_class=tokenizer(),
        callbacks=hooks(),
    )
    trainer.train()
    return {"train": trainer.state.global_step}


@program("trl")
def rewards(folder: Path) -> Counts:
    """Learn from rewards with TRL by GRPO: completions are generated before the updates."""
    from trl import GRPOConfig, GRPOTrainer

    from datasets import Dataset

    options = {**_TRL, "max_steps": 10, "num_generations": 4, "max_completion_length": 8}
    trainer = GRPOTrainer(
        language_model(),
        reward_funcs=lambda completions, **_: [float(len({*text.split()})) for text in completions],
        args=GRPOConfig(str(folder / "output"), **options),
        train_dataset=Dataset.from_dict({"prompt": texts(ROWS, 0, 6)}),
        processing_class=tokenizer(),
        callbacks=hooks(),
    )
    trainer.train()
    return {"train": trainer.state.global_step}
