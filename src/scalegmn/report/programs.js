// Runs the programs that browser.py writes. A tensor is a Float64Array with a shape, rows one after the other.
const programs = (() => {
  const size = (shape) => shape.reduce((a, b) => a * b, 1);
  const stridesOf = (shape) => {
    const found = new Array(shape.length);
    for (let i = shape.length - 1, step = 1; i >= 0; step *= shape[i--]) found[i] = step;
    return found;
  };
  // Calls visit(position in the result, position in each source) for all entries; sources are lists of strides.
  const walk = (shape, sources, offsets, visit) => {
    const rank = shape.length, index = new Array(rank).fill(0), at = offsets.slice();
    for (let i = 0, n = size(shape); i < n; i++) {
      visit(i, at);
      for (let d = rank - 1; d >= 0; d--) {
        for (let s = 0; s < at.length; s++) at[s] += sources[s][d];
        if (++index[d] < shape[d]) break;
        for (let s = 0; s < at.length; s++) at[s] -= sources[s][d] * shape[d];
        index[d] = 0;
      }
    }
  };
  // Strides with which a tensor is read as if it had another shape; what is repeated has stride 0.
  const broadcast = (tensor, shape) => {
    const own = stridesOf(tensor.shape), missing = shape.length - tensor.shape.length;
    return shape.map((_, d) => (d < missing || tensor.shape[d - missing] === 1 ? 0 : own[d - missing]));
  };
  const unary = {
    neg: (x) => -x, abs: Math.abs, sin: Math.sin, cos: Math.cos, tanh: Math.tanh, exp: Math.exp, log: Math.log,
    sqrt: Math.sqrt, rsqrt: (x) => 1 / Math.sqrt(x), square: (x) => x * x, asinh: Math.asinh, reciprocal: (x) => 1 / x,
    sigmoid: (x) => 1 / (1 + Math.exp(-x)), silu: (x) => x / (1 + Math.exp(-x)), relu: (x) => Math.max(x, 0),
  };
  const binary = {
    add: (a, b) => a + b, sub: (a, b) => a - b, mul: (a, b) => a * b, div: (a, b) => a / b, pow: Math.pow,
    lt: (a, b) => (a < b ? 1 : 0), maximum: Math.max,
  };
  const reduce = { sum: [0, (a, b) => a + b], mean: [0, (a, b) => a + b], amax: [-Infinity, Math.max] };

  const operations = {
    view: (out, [x]) => { out.data = x.data; },
    strided: (out, [x], strides, offset) => {
      walk(out.shape, [strides], [offset], (i, at) => { out.data[i] = x.data[at[0]]; });
    },
    matmul: (out, [a, b]) => {
      const rank = out.shape.length, n = out.shape[rank - 2], m = out.shape[rank - 1], k = a.shape[rank - 1];
      for (let batch = 0; batch < out.data.length / (n * m); batch++) {
        for (let i = 0; i < n; i++) {
          const row = (batch * n + i) * m;
          for (let j = 0; j < k; j++) {
            const factor = a.data[(batch * n + i) * k + j], from = (batch * k + j) * m;
            for (let c = 0; c < m; c++) out.data[row + c] += factor * b.data[from + c];
          }
        }
      }
    },
    norm: (out, [x, weight, bias], eps) => {
      const n = out.shape[out.shape.length - 1];
      for (let start = 0; start < x.data.length; start += n) {
        let mean = 0, variance = 0;
        for (let i = 0; i < n; i++) mean += x.data[start + i] / n;
        for (let i = 0; i < n; i++) variance += (x.data[start + i] - mean) ** 2 / n;
        const factor = 1 / Math.sqrt(variance + eps);
        for (let i = 0; i < n; i++) {
          out.data[start + i] = (x.data[start + i] - mean) * factor * weight.data[i] + bias.data[i];
        }
      }
    },
    cat: (out, parts, dim) => {
      const inner = size(out.shape.slice(dim + 1)), outer = size(out.shape.slice(0, dim));
      let begin = 0;
      for (const part of parts) {
        const width = part.shape[dim] * inner;
        for (let o = 0; o < outer; o++) {
          out.data.set(part.data.subarray(o * width, (o + 1) * width), o * out.shape[dim] * inner + begin);
        }
        begin += width;
      }
    },
    where: (out, [condition, a, b]) => {
      const sources = [condition, a, b].map((t) => broadcast(t, out.shape));
      walk(out.shape, sources, [0, 0, 0], (i, at) => {
        out.data[i] = condition.data[at[0]] ? a.data[at[1]] : b.data[at[2]];
      });
    },
  };
  for (const [name, f] of Object.entries(unary)) {
    operations[name] = (out, [x]) => { for (let i = 0; i < x.data.length; i++) out.data[i] = f(x.data[i]); };
  }
  for (const [name, f] of Object.entries(binary)) {
    operations[name] = (out, [a, b]) => {
      walk(out.shape, [broadcast(a, out.shape), broadcast(b, out.shape)], [0, 0], (i, at) => {
        out.data[i] = f(a.data[at[0]], b.data[at[1]]);
      });
    };
  }
  for (const [name, [start, f]] of Object.entries(reduce)) {
    operations[name] = (out, [x], dims) => {
      const own = stridesOf(x.shape), kept = x.shape.map((n, d) => (dims.includes(d) ? 1 : n));
      const target = stridesOf(kept).map((s, d) => (dims.includes(d) ? 0 : s));
      out.data.fill(start);
      walk(x.shape, [own, target], [0, 0], (_, at) => { out.data[at[1]] = f(out.data[at[1]], x.data[at[0]]); });
      if (name === "mean") {
        const count = x.data.length / out.data.length;
        for (let i = 0; i < out.data.length; i++) out.data[i] /= count;
      }
    };
  }

  // From the data of a program to a function of an array.
  const load = (program) => {
    const bytes = Uint8Array.from(atob(program.numbers), (c) => c.charCodeAt(0));
    const numbers = Float64Array.from(new Float32Array(bytes.buffer));
    const constants = [];
    let start = 0;
    for (const shape of program.constants) {
      constants.push({ shape, data: numbers.subarray(start, (start += size(shape))) });
    }
    return (input) => {
      const values = constants.slice();
      for (const [name, shape, sources, ...options] of program.steps) {
        const shared = name === "view" || name === "input";
        const out = { shape, data: shared ? input : new Float64Array(size(shape)) };
        if (name !== "input") operations[name](out, sources.map((i) => values[i]), ...options);
        values.push(out);
      }
      return values[program.result].data;
    };
  };
  return { load };
})();
