"""The workloads of the paper by name, and its Table I."""

from __future__ import annotations

from difflib import get_close_matches
from types import MappingProxyType

import polars as pl

from tpunb.errors import TpunbError
from tpunb.studies.paper.workloads.bert import Bert
from tpunb.studies.paper.workloads.dcgan import Dcgan
from tpunb.studies.paper.workloads.images import Images, Scenes
from tpunb.studies.paper.workloads.qanet import QANet
from tpunb.studies.paper.workloads.resnet import ResNet
from tpunb.studies.paper.workloads.retinanet import RetinaNet
from tpunb.studies.paper.workloads.texts import Questions, Sentences
from tpunb.studies.paper.workloads.workload import Workload
from tpunb.text import plain

_LANGUAGE, _IMAGES, _ANSWERS = "Natural Language", "Image Generation", "Q/A Natural Language"
_OBJECTS, _CLASSES = "Object Detection", "Image Classification"
_GIB = 1024.0  # MiB
_SQUAD, _COCO, _CIFAR = 422.27, 48.49 * _GIB, 178.87  # MiB
_SQUAD_EXAMPLES = 87_599
_SMALL, _PHOTOS, _SCENES = Images(32, 32, 10, file="png"), Images(375, 500, 1000), Scenes(480, 640, 90)
_HALF_QANET = QANet(Questions(), _SQUAD_EXAMPLES, 0.5)


_ALL = (
    # sentence lengths in words, examples, and at scale 0 the steps of an epoch: fewer for smaller datasets
    Workload("bert-squad", _LANGUAGE, "BERT", "SQuAD", _SQUAD, Bert(Questions(), _SQUAD_EXAMPLES, 128)),
    Workload("bert-mrpc", _LANGUAGE, "BERT", "MRPC", 2.85, Bert(Sentences(22, 22, 2), 3668, 80)),
    Workload("bert-mnli", _LANGUAGE, "BERT", "MNLI", 430.61, Bert(Sentences(20, 10, 3), 392_702, 144)),
    Workload("bert-cola", _LANGUAGE, "BERT", "CoLA", 1.44, Bert(Sentences(8, 0, 2), 8551, 104)),
    Workload("dcgan-cifar10", _IMAGES, "DCGAN", "CIFAR-10", _CIFAR, Dcgan(_SMALL, 50_000)),
    Workload("dcgan-mnist", _IMAGES, "DCGAN", "MNIST", 56.21, Dcgan(Images(28, 28, 10, 1, "png"), 60_000)),
    Workload("qanet-squad", _ANSWERS, "QANet", "SQuAD", _SQUAD, QANet(Questions(), _SQUAD_EXAMPLES)),
    Workload("retinanet-coco", _OBJECTS, "RetinaNet", "COCO", _COCO, RetinaNet(_SCENES)),
    Workload("resnet-imagenet", _CLASSES, "ResNet", "ImageNet", 143.38 * _GIB, ResNet(_PHOTOS, 1_281_167)),
    # section VI.C
    Workload("qanet-squad-half", _ANSWERS, "QANet", "half of SQuAD", _SQUAD / 2, _HALF_QANET, True),
    Workload("retinanet-coco-half", _OBJECTS, "RetinaNet", "half of COCO", _COCO / 2, RetinaNet(_SCENES, 0.5), True),
    Workload("resnet-cifar10", _CLASSES, "ResNet", "CIFAR-10", _CIFAR, ResNet(Images(32, 32, 10), 50_000), True),
)

WORKLOADS = MappingProxyType({each.name: each for each in _ALL})
"""The workloads, by name."""


def workload(name: str, *, balance: float | None = None) -> Workload:
    """Return a workload by name, in any case; at a balance of input and device, if given (`Workload.at_balance`).

    Raises
    ------
    ValueError
        The balance is not above 0.
    TpunbError
        No workload has that name, or its model cannot reach the balance.

    >>> workload("BERT-MRPC")
    Workload(name='bert-mrpc', task='Natural Language', model='BERT', dataset='MRPC', size_mib=2.85, reduced=False)
    """
    if name.casefold() in WORKLOADS:
        found = WORKLOADS[name.casefold()]
        return found if balance is None else found.at_balance(balance)
    near = get_close_matches(name.casefold(), WORKLOADS, n=1)
    hint = f"use {near[0]!r}" if near else f"use one of {', '.join(WORKLOADS)}"
    raise TpunbError(f"no workload is named {plain(name)!r}", hint=hint)


def table_1() -> pl.DataFrame:
    """Return the paper's Table I: workload, task, model, dataset and its size, and the training parameters.

    One row per model and dataset; the parameters are those of a run at scale 1.

    >>> table_1().select("model", "dataset", "size_mib").row(1)
    ('BERT', 'MRPC', 2.85)
    """
    rows = [
        {
            "workload": each.name,
            **{name: getattr(each, name) for name in ("task", "model", "dataset", "size_mib")},
            "parameters": "\n".join(f"{name}: {value:g}" for name, value in each.table_1.items()),
        }
        for each in WORKLOADS.values()
        if not each.reduced
    ]
    return pl.DataFrame(rows)
