"""An engine in this process as a replica."""

from engine_cases import an_engine

from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.serving.failover import Chunk, ReplicaLost
from lessons_lib.serving.router import Replica


class EngineReplica(Replica):
    """It is lost with its token number `lost_after`, or when `is_alive` is set to False."""

    def __init__(self, lost_after=None):
        super().__init__()
        self.engine, self.is_alive, self.lost_after, self.num_chunks = an_engine(), True, lost_after, 0

    def stream(self, request):
        fields = dict(request)
        prompt, so_far = fields.pop("prompt"), fields.pop("output_token_ids", ())
        self.refuse_if_lost(0)
        tokens = self.engine.stream(prompt, SamplingParams(**fields), output_ids=so_far)
        for count, token in enumerate(tokens):
            self.refuse_if_lost(count)
            self.num_chunks += 1
            yield Chunk([token.token], token.finish_reason)

    def refuse_if_lost(self, count):
        if not self.is_alive or count == self.lost_after:
            raise ReplicaLost("the replica doesn't answer")

    def lose(self):
        self.is_alive = False
