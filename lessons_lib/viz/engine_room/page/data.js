/**
 * XORs into a memory what a WebAssembly file puts there before it starts; once more, and it is as before. Python's memory
 * (snapshot.mjs) is stored so, because the file has a quarter of it already.
 * @param {Uint8Array} memory the memory itself is its last whole pages @param {Uint8Array} wasm
 */
export function xorData(memory, wasm) {
  const start = memory.length % 65536;
  let at = 8;
  const number = () => {
    let [value, shift, byte] = [0, 0, 0];
    do {
      byte = wasm[at++];
      value += (byte & 127) * 2 ** shift;
      shift += 7;
    } while (byte & 128);
    return value;
  };
  while (at < wasm.length) {
    const kind = wasm[at++],
      size = number(),
      end = at + size;
    for (let left = kind === 11 ? number() : 0; left > 0; left--) {
      at += 2; // an active segment; i32.const
      const to = start + number();
      at++; // end of the expression
      const length = number();
      for (let i = 0; i < length; i++) memory[to + i] ^= wasm[at + i];
      at += length;
    }
    at = end;
  }
}
