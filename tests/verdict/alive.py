"""A second ledger, by name of each array, which knows neither graph nor tape."""


class Alive:
    """Arrays by name, and the most elements times bytes that there were of them."""

    def __init__(self):
        self.held, self.most = {}, 0

    def take(self, name, held_bytes):
        assert name not in self.held
        self.held[name] = held_bytes
        self.most = max(self.most, sum(self.held.values()))

    def drop(self, *names):
        for name in names:
            del self.held[name]
