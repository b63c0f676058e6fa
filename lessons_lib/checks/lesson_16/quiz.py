"""The quiz of lesson 16."""

SLIPS = """
16.a 1.13: That is the ratio of the large model. Start from the small one's 3.21 ms.
16.a 1.01: That leaves out the sums: 48 of them take 0.34 ms.
16.a 0.96: A layer has two sums, one after attention and one after the MLP.
16.a 0.94: That compares with one GPU. Two replicas take 3.10 ms for a step.
16.a 1.1: The other way round: tokens per second are one over the time.
16.b 2: That is one of the two steps.
16.b 6: Those are all arrows of one step, from three workers.
16.b 12: Those are the arrows of all three workers.
16.b 9: That is three whole tensors. A worker sends only parts.
"""

QUIZ = """
An MLP computes down(silu(gate(x)) * up(x)). A colleague cuts all three matrices by columns, over two processes. What
has to be sent for each token?
- Nothing more: each process has a half of the result.
  A column of down needs all of its inputs, and each process has computed only half of them.
- One sum at the end, as with down cut by rows.
  With down cut by columns, an output needs all inputs of down, and each process has half of them: half of its terms are
  computed nowhere, so no sum has them.
+ The inputs of down before it, and its outputs after it.
  Each process has half of the inputs, and a column needs all; afterwards each has half of the outputs. With down cut by
  rows, one sum replaces both.
- The weights of down, so that each process has all of them.
  Weights aren't sent in a step. They are many more bytes than a token's elements.

A model is cut over 16 GPUs instead of 4, and its all-reduce is a ring. What changes for one sum?
- Each GPU sends about four times as many bytes.
  It sends 2 (N - 1) / N of the tensor: 1.5 times the tensor with 4 GPUs, and less than twice with any number.
- Each GPU sends a quarter of the bytes, since its part of the matrix is a quarter as large.
  A row cut makes each process compute a part of *every* output. So the tensors that are added up keep their size,
  however many processes there are.
+ Each GPU sends a quarter more bytes, but five times as many messages have to follow one another.
  1.875 instead of 1.5 times the tensor, but 2 (N - 1) = 30 messages in a row instead of 6. For the few kilobytes of a
  decode step, the messages count more.
- Nothing: the tensor has the same size.
  It has, but a sum now needs the results of 16 GPUs, and waits for the slowest of them.

A model of 70 billion parameters (bfloat16, 8 KV heads) is cut over four GPUs of 80 GB. A fifth is idle. What can it do?
- Hold a replica of the model. => 140 GB don't fit on one GPU. A replica of this model takes a group of GPUs, too.
- Join the group: five parts instead of four.
  The parts must be equal, and attention heads stay whole. 8 KV heads can't be divided among five processes.
- Take over if one of the four is lost, without any of the streams noticing.
  The lost GPU held its part of every layer's keys and values. These have to be computed again, by all parts together.
  To a balancer, the whole group was one replica, and it was lost.
+ Nothing for this model by itself. But it can replace a GPU that fails, once the group has restarted.
  A group starts and dies as a whole. For a second replica you need three more GPUs.
"""
