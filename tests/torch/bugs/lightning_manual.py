"""Lightning's manual optimization under DDP, with a static graph."""

import os
import sys

os.environ.setdefault("NODE_RANK", "0")
import lightning
import torch
from model import Net, say
from torch.nn.functional import cross_entropy


class Manual(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.automatic_optimization = Net(), False

    def training_step(self, batch, number):
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.optimizers().zero_grad()
        (self.manual_backward if "manual" in sys.argv else torch.Tensor.backward)(loss)
        self.optimizers().step()
        say(number + 1, loss)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(48, 16), torch.randint(0, 4, (48,)))
strategy = lightning.pytorch.strategies.DDPStrategy(static_graph="static" in sys.argv, process_group_backend="gloo")
lightning.Trainer(
    accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy=strategy, max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
).fit(Manual(), torch.utils.data.DataLoader(data, 8))
