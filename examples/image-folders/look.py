"""Let the model of one camera judge images, with torch alone: Palmette is not needed where the model is used."""

import json

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from small_cnn import make

with safe_open("models/squares-2.safetensors", "pt") as file:
    about = json.loads(file.metadata()["palmette"])
    weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
model = make(about["image"], len(about["classes"]))
model.load_state_dict(weights)
scale, shift = about["affine"]  # from bytes to what the model was trained on

for kind in ("good", "wrong"):
    image = Image.open(f"cameras/squares-2/{kind}/1.png")
    pixels = torch.from_numpy(np.array(image, dtype="float32")).permute(2, 0, 1)[None]
    print(kind, "is judged", about["classes"][model(pixels * scale + shift).argmax()])
