// What kernels.ts does, in plain JavaScript over float32 weights: for a browser without SIMD, five times as slow.
export function plain(memory) {
  const floats = new Float32Array(memory.buffer),
    ints = new Int32Array(memory.buffer);
  function matmul(y, x, w, T, K, N) {
    [y, x, w] = [y / 4, x / 4, w / 4];
    for (let t = 0; t < T; t++)
      for (let n = 0; n < N; n++) {
        let sum = 0;
        for (let k = 0, a = x + t * K, b = w + n * K; k < K; k++) sum += floats[a++] * floats[b++];
        floats[y + t * N + n] = sum;
      }
  }
  function attend(out, q, keys, values, table, count, size) {
    const slots = Array.from({ length: count }, (_, p) => ints[table / 4 + Math.floor(p / size)] * size + (p % size));
    for (let h = 0; h < 4; h++) {
      const head = (h >> 1) * 64,
        query = q / 4 + h * 64,
        at = out / 4 + h * 64;
      const scores = slots.map((slot) => {
        let sum = 0;
        for (let i = 0, k = keys / 4 + slot * 128 + head; i < 64; i++) sum += floats[query + i] * floats[k + i];
        return sum / 8;
      });
      const most = Math.max(...scores),
        weights = scores.map((score) => Math.exp(score - most));
      const total = weights.reduce((a, b) => a + b);
      floats.fill(0, at, at + 64);
      slots.forEach((slot, p) => {
        for (let i = 0, v = values / 4 + slot * 128 + head; i < 64; i++)
          floats[at + i] += (weights[p] / total) * floats[v + i];
      });
    }
  }
  return { matmul, attend };
}
