// Draws a token as lessons_lib/engine/sampling.py does: a race with random numbers from seed, position and token id alone
// (stateless_random.py). Same seed, same text, in whatever batch and after whatever preemption.
const STEP = 0x9e3779b97f4a7c15n,
  FACTORS = [0xbf58476d1ce4e5b9n, 0x94d049bb133111ebn],
  WRAP = (1n << 64n) - 1n;

function mixed(x) {
  x = (x + STEP) & WRAP;
  x = ((x ^ (x >> 30n)) * FACTORS[0]) & WRAP;
  x = ((x ^ (x >> 27n)) * FACTORS[1]) & WRAP;
  return x ^ (x >> 31n);
}
const HALVES = [STEP, ...FACTORS].map((x) => [Number(x >> 32n) | 0, Number(x & 0xffffffffn) | 0]);

/** The numbers in (0, 1) of the tokens from 0 on, as float32: `mixed` again, in halves of 32 bits, which is fast. */
export function randomNumbers(seed, position, count) {
  const stream = (mixed((mixed(BigInt.asUintN(64, BigInt(seed))) + BigInt(position)) & WRAP) + STEP) & WRAP;
  const [[stepHigh, stepLow], [high1, low1], [high2, low2]] = HALVES,
    numbers = new Float32Array(count);
  let high = Number(stream >> 32n) | 0,
    low = Number(stream & 0xffffffffn) | 0,
    h = 0,
    l = 0;
  const times = (factorHigh, factorLow) => {
    // h, l = the low 64 bits of a product
    const a0 = l & 0xffff,
      a1 = l >>> 16,
      b0 = factorLow & 0xffff,
      b1 = factorLow >>> 16;
    const p00 = Math.imul(a0, b0),
      p01 = Math.imul(a0, b1),
      p10 = Math.imul(a1, b0);
    const mid = (p00 >>> 16) + (p01 & 0xffff) + (p10 & 0xffff);
    const carried = Math.imul(a1, b1) + (p01 >>> 16) + (p10 >>> 16) + (mid >>> 16);
    h = (carried + Math.imul(h, factorLow) + Math.imul(l, factorHigh)) | 0;
    l = (mid << 16) | (p00 & 0xffff);
  };
  for (let token = 0; token < count; token++) {
    l = low ^ ((low >>> 30) | (high << 2));
    h = high ^ (high >>> 30);
    times(high1, low1);
    l ^= (l >>> 27) | (h << 5);
    h ^= h >>> 27;
    times(high2, low2);
    const bits = (h ^ (h >>> 31)) >>> 0;
    numbers[token] = Math.min(Math.fround(Math.fround(bits) + 0.5) * 2 ** -32, 1 - 2 ** -24);
    const sum = (low >>> 0) + (stepLow >>> 0);
    low = sum | 0;
    high = (high + stepHigh + (sum > 0xffffffff ? 1 : 0)) | 0;
  }
  return numbers;
}

/** The next token. At temperature 0 it is the likeliest one. */
export function draw(logits, temperature, seed, position) {
  let best = 0;
  for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
  if (!temperature) return best;
  const highest = logits[best],
    inverse = Math.fround(1 / temperature),
    f = Math.fround;
  const numbers = randomNumbers(seed, position, logits.length);
  let most = -1,
    winner = best;
  for (let i = 0; i < logits.length; i++) {
    const score = f(f(Math.exp(f(f(logits[i] - highest) * inverse))) / f(-Math.log1p(-numbers[i])));
    if (score > most) [most, winner] = [score, i];
  }
  return winner;
}
