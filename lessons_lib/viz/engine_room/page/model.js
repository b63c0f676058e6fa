// The bundled model's forward pass over a paged KV cache. A batch is packed: tokens of several sequences in a row, each
// with its position and cache slot; a sequence reads its keys and values through the scheduler's block table.
import { draw } from "./noise.js";
import { plain } from "./plain.js";

const H = 256,
  LAYERS = 8,
  HEADS = 4,
  KV = 2,
  D = 64,
  F = 704,
  VOCAB = 4096,
  EPS = 1e-6,
  THETA = 1e4,
  PAGE = 65536;
const MOST = 256,
  ROWS = 64; // tokens and sequences of a step
export const SLOTS = 4096; // of the cache

/** kernels: the bytes of kernels.wasm; null, or a browser without SIMD, means plain JavaScript. */
export async function loadModel(weights, kernels) {
  const length = Number(new DataView(weights).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(weights, 8, length)));
  const fast = Boolean(kernels) && WebAssembly.validate(kernels),
    cacheSize = SLOTS * KV * D;
  const floats = MOST * (H * 4 + KV * D * 2 + F * 2) + ROWS * VOCAB + 4096 + 2 * LAYERS * cacheSize;
  const total = weights.byteLength * (fast ? 1 : 2) + 4 * floats + PAGE * 16;
  const memory = new WebAssembly.Memory({ initial: Math.ceil(total / PAGE) });
  let top = PAGE;
  const room = (bytes) => {
    const at = top;
    top += (bytes + 63) & ~63;
    return at;
  };
  const f32 = (count) => new Float32Array(memory.buffer, room(4 * count), count);
  const w = {}; // matrices stay bf16 for the kernels; everything else is float32
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [from, to] = entry.data_offsets,
      count = (to - from) / 2,
      key = name.replace("model.", "");
    const bf16 = new Uint16Array(weights.slice(8 + length + from, 8 + length + to));
    if (fast && entry.shape.length > 1) {
      w[key] = new Uint16Array(memory.buffer, room(to - from), count);
      w[key].set(bf16);
    } else {
      const bits = new Uint32Array(memory.buffer, room(4 * count), count);
      for (let i = 0; i < count; i++) bits[i] = bf16[i] << 16;
      w[key] = new Float32Array(memory.buffer, bits.byteOffset, count);
    }
  }
  const kernel = fast ? (await WebAssembly.instantiate(kernels, { env: { memory } })).instance.exports : plain(memory);
  const x = f32(MOST * H),
    n = f32(MOST * H),
    q = f32(MOST * H),
    att = f32(MOST * H),
    k = f32(MOST * KV * D);
  const v = f32(MOST * KV * D),
    g = f32(MOST * F),
    u = f32(MOST * F),
    logits = f32(ROWS * VOCAB),
    scores = f32(2048);
  const table = new Int32Array(memory.buffer, room(4096), 1024),
    layerAt = (i) => i * cacheSize;
  const keys = f32(LAYERS * cacheSize),
    values = f32(LAYERS * cacheSize),
    swapped = new Map(); // block -> its contents
  const cos = new Float32Array(1024 * 32),
    sin = new Float32Array(1024 * 32);
  for (let p = 0; p < 1024; p++)
    for (let i = 0; i < 32; i++) {
      const angle = p * Math.fround(1 / THETA ** ((2 * i) / D));
      cos[p * 32 + i] = Math.cos(angle);
      sin[p * 32 + i] = Math.sin(angle);
    }

  const matmul = (y, x, w, T, K, N) => kernel.matmul(y.byteOffset, x.byteOffset, w.byteOffset, T, K, N);
  const norm = (to, from, weight, T) => {
    for (let t = 0; t < T; t++) {
      let sum = 0;
      for (let i = t * H; i < (t + 1) * H; i++) sum += from[i] * from[i];
      const scale = 1 / Math.sqrt(sum / H + EPS);
      for (let i = 0; i < H; i++) to[t * H + i] = from[t * H + i] * scale * weight[i];
    }
  };
  const addBias = (y, b, T) => {
    for (let t = 0, i = 0; t < T; t++) for (let j = 0; j < b.length; j++) y[i++] += b[j];
  };
  const rotate = (y, positions, T, heads) => {
    for (let t = 0; t < T; t++)
      for (let h = 0, r = positions[t] * 32; h < heads; h++)
        for (let i = 0, a = (t * heads + h) * D; i < 32; i++, a++) {
          const s = y[a],
            e = y[a + 32];
          y[a] = s * cos[r + i] - e * sin[r + i];
          y[a + 32] = e * cos[r + i] + s * sin[r + i];
        }
  };
  const bits = new Uint32Array(1),
    asFloat = new Float32Array(bits.buffer);
  const widen = (half) => ((bits[0] = half << 16), asFloat[0]);

  /** rows: [{ids, start, blocks, seed, position}], ids of the new tokens from position `start` on. Each one's next token. */
  function forward(rows, size, temperature) {
    const positions = [],
      slotOf = [];
    let T = 0;
    for (const { ids, start, blocks } of rows)
      for (let i = 0; i < ids.length; i++, T++) {
        const p = start + i,
          e = ids[i] * H,
          from = w["embed_tokens.weight"];
        positions.push(p);
        slotOf.push(blocks[Math.floor(p / size)] * size + (p % size));
        if (fast) for (let j = 0; j < H; j++) x[T * H + j] = widen(from[e + j]);
        else x.set(from.subarray(e, e + H), T * H);
      }
    for (let layer = 0; layer < LAYERS; layer++) {
      const part = (name) => w[`layers.${layer}.${name}`];
      norm(n, x, part("input_layernorm.weight"), T);
      for (const [y, name, N] of [
        [q, "q", H],
        [k, "k", KV * D],
        [v, "v", KV * D],
      ]) {
        matmul(y, n, part(`self_attn.${name}_proj.weight`), T, H, N);
        addBias(y, part(`self_attn.${name}_proj.bias`), T);
      }
      rotate(q, positions, T, HEADS);
      rotate(k, positions, T, KV);
      for (let t = 0; t < T; t++) {
        const to = layerAt(layer) + slotOf[t] * KV * D;
        keys.set(k.subarray(t * KV * D, (t + 1) * KV * D), to);
        values.set(v.subarray(t * KV * D, (t + 1) * KV * D), to);
      }
      for (let r = 0, t = 0; r < rows.length; r++) {
        table.set(rows[r].blocks); // the scheduler's block table, as it is
        const at = 4 * layerAt(layer);
        for (let i = 0; i < rows[r].ids.length; i++, t++)
          kernel.attend(
            att.byteOffset + t * H * 4,
            q.byteOffset + t * H * 4,
            keys.byteOffset + at,
            values.byteOffset + at,
            table.byteOffset,
            positions[t] + 1,
            size,
            scores.byteOffset,
          );
      }
      matmul(n, att, part("self_attn.o_proj.weight"), T, H, H);
      for (let i = 0; i < T * H; i++) x[i] += n[i];
      norm(n, x, part("post_attention_layernorm.weight"), T);
      matmul(g, n, part("mlp.gate_proj.weight"), T, H, F);
      matmul(u, n, part("mlp.up_proj.weight"), T, H, F);
      for (let i = 0; i < T * F; i++) g[i] = (g[i] / (1 + Math.exp(-g[i]))) * u[i];
      matmul(n, g, part("mlp.down_proj.weight"), T, F, H);
      for (let i = 0; i < T * H; i++) x[i] += n[i];
    }
    let t = -1;
    rows.forEach(({ ids }, r) => {
      t += ids.length;
      n.set(x.subarray(t * H, (t + 1) * H), r * H);
    }); // last token of each
    norm(n, n, w["norm.weight"], rows.length);
    matmul(logits, n, w["embed_tokens.weight"], rows.length, H, VOCAB);
    return rows.map(({ seed, position }, r) =>
      draw(logits.subarray(r * VOCAB, (r + 1) * VOCAB), temperature, seed, position),
    );
  }

  /** The scheduler's block copies: within the cache, out to the swap space, and back. */
  function copyBlock(kind, from, to, size) {
    const block = size * KV * D,
      both = [keys, values];
    const layers = [...Array(LAYERS).keys()].map(layerAt);
    const read = () => both.map((cache) => layers.map((at) => cache.slice(at + from * block, at + (from + 1) * block)));
    const contents = kind === "swap in" ? swapped.get(from) : read();
    if (kind === "swap out") swapped.set(to, contents);
    else both.forEach((cache, c) => layers.forEach((at, i) => cache.set(contents[c][i], at + to * block)));
  }
  return { forward, copyBlock, fast };
}
