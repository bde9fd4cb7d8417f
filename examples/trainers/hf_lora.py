# SPDX-License-Identifier: Apache-2.0
"""A model of Hugging Face's transformers with adapters of peft (LoRA). The model's own weights are
frozen and never travel: every site has the same ones, and fl-client checks that by their digest. Only
the adapters are trained and sent; here 4 kB of a model of 480 kB.

    python hf_lora.py text.txt                writes hf-lora.safetensors, for
                                              `fl-server --model custom:hf-lora --initial-weights …`
    python hf_lora.py text.txt TOKEN SITE     takes part; SITE names its state folder
    python hf_lora.py --save VERSION FOLDER   a checkpoint of the server's as a folder of peft's

The model here is tiny, made from a configuration, and reads bytes, so that nothing is downloaded. With a
model of your own, change make_model() and read_data(): as it says there."""

import sys

import torch
import tributary_fl as fl
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel
from tributary_fl.metrics import perplexity
from tributary_fl.torch import Trainer, save

CONTEXT = 64


def make_model():
    """In earnest: AutoModelForCausalLM.from_pretrained(NAME, revision=COMMIT).train(), so that all have
    one model, and its dropouts drop. For classes: AutoModelForSequenceClassification and
    task_type="SEQ_CLS"."""
    torch.manual_seed(0)  # The frozen weights are the same everywhere.
    config = GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    adapters = LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True
    )
    return get_peft_model(GPT2LMHeadModel(config), adapters)


def read_data(path):
    """A list of dicts, one for each example, in which `labels` are the targets; -100 is masked. A
    `datasets.Dataset` will do, too. Examples of several lengths need a collate, as in
    Trainer(..., collate=DataCollatorForLanguageModeling(tokenizer, mlm=False))."""
    with open(path, "rb") as file:
        tokens = torch.tensor(list(file.read()))
    windows = tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    return [{"input_ids": window, "labels": window} for window in windows]


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = make_model()
    if sys.argv[1] == "--save":
        version, folder = sys.argv[2:]
        fl.load(version, model).save_pretrained(folder)
        sys.exit()
    path, *join = sys.argv[1:]
    if not join:
        save(model, "hf-lora.safetensors")
        sys.exit()
    examples = read_data(path)
    held = max(1, len(examples) // 10)
    trainer = Trainer(
        model, examples[held:], eval_data=examples[:held], metrics={"perplexity": perplexity()}
    )
    fl.run(trainer, join=join[0], state=join[1])
