// The figure: a network is moved along its symmetries, and everything beside it is computed anew.
const play = (root, data) => {
  const make = (tag, parent, text = "", name = "") => {
    const element = parent.appendChild(document.createElement(tag));
    element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const floats = (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return Float64Array.from(new Float32Array(bytes.buffer));
  };
  const softmax = (scores) => {
    const top = Math.max(...scores), powers = Array.from(scores, (s) => Math.exp(s - top));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((p) => p / sum);
  };
  const largest = (a, b) => a.reduce((most, v, i) => Math.max(most, Math.abs(v - b[i])), 0);
  // With a minus sign at which a line does not break.
  const small = (value) => (value === 0 ? "0" : value.toExponential(0).replace("-", "\u2212"));
  const best = (values) => values.indexOf(Math.max(...values));

  const networks = data.networks.map((n) => ({ ...n, parameters: floats(n.parameters) }));
  const models = data.models.map((m) => ({ ...m, run: programs.load(m.program) }));
  const render = programs.load(data.picture);
  const state = { network: 0, permuted: 0, scaled: 0, draw: null };

  // -- symmetries: per layer an order in which neurons are taken and a number in [-1, 1] for each ----------------
  const shuffled = (count) => {
    const order = Array.from({ length: count }, (_, i) => i);
    for (let i = count - 1; i > 0; i--) {
      const j = Math.floor(Math.random() * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  };
  const drawAnew = () => {
    state.draw = data.layers.map(({ size }) => ({
      ring: shuffled(size), flips: shuffled(size), sizes: Array.from({ length: size }, () => 2 * Math.random() - 1),
    }));
  };
  // Where the neurons of each layer come from, and their multipliers.
  const transform = () => data.layers.map(({ size, permuted, signs, scales }, l) => {
    const { ring, flips, sizes } = state.draw[l];
    const from = Array.from({ length: size }, (_, i) => i), factor = new Array(size).fill(1);
    const moving = permuted ? ring.slice(0, Math.round(state.permuted * size)) : [];
    moving.forEach((neuron, i) => { from[neuron] = moving[(i + 1) % moving.length]; });
    if (scales) sizes.forEach((u, i) => { factor[i] *= 10 ** (state.scaled * u); });
    if (signs) flips.slice(0, Math.round(state.scaled * size)).forEach((i) => { factor[i] *= -1; });
    return { from, factor };
  });
  const moved = (parameters) => {
    const g = transform(), found = new Float64Array(parameters.length);
    for (const { start, source, target } of data.tensors) {
      const rows = g[target], columns = source === null ? { from: [0], factor: [1] } : g[source];
      const width = columns.from.length;
      rows.from.forEach((r, i) => columns.from.forEach((c, j) => {
        found[start + i * width + j] = (rows.factor[i] / columns.factor[j]) * parameters[start + r * width + c];
      }));
    }
    return found;
  };

  // -- drawing ---------------------------------------------------------------------------------------------------
  const paint = (canvas, height, width, colour) => {
    canvas.height = height;
    canvas.width = width;
    const context = canvas.getContext("2d"), image = context.createImageData(width, height);
    for (let i = 0; i < height * width; i++) image.data.set([...colour(i), 255], 4 * i);
    context.putImageData(image, 0, 0);
  };
  const [height, width, channels] = data.pictureShape;
  const show = (canvas, pixels) => paint(canvas, height, width, (i) =>
    [0, 1, 2].map((c) => 255 * Math.min(1, Math.max(0, pixels[i * channels + Math.min(c, channels - 1)]))));
  const diverging = (v) => {
    const t = Math.max(-1, Math.min(1, v)), end = t < 0 ? [47, 111, 223] : [217, 96, 59];
    return end.map((c) => 255 + (c - 255) * Math.sqrt(Math.abs(t)));
  };

  // -- what stands on the page -------------------------------------------------------------------------------------
  const choose = make("div", root, "", "choose");
  const controls = make("div", root, "", "controls");
  const stage = make("div", root, "", "stage");
  const maps = make("div", stage, "", "maps"), picture = make("div", stage, "", "picture");
  const answers = make("div", stage, "", "answers");
  make("p", maps, "Its weights", "title");
  const layerName = (l) => (l === 0 ? "inputs" : l === data.layers.length - 1 ? "output" : `hidden layer ${l}`);
  const sheets = data.tensors.filter((t) => t.source !== null).map((t) => {
    make("small", maps, `${layerName(t.source)} to ${layerName(t.target)}`);
    return { tensor: t, canvas: make("canvas", maps) };
  });
  const weightsNote = make("p", maps, "", "still");
  make("p", picture, "Its picture", "title");
  const drawing = make("canvas", picture), pictureNote = make("p", picture, "", "still");
  for (const model of models) {
    const box = make("div", answers, "", "model"), title = make("p", box, "", "title");
    make("span", title, model.name);
    model.verdict = make("span", title, "", "verdict");
    const bars = make("div", box, "", "bars"), names = make("div", box, "", "names");
    model.bars = data.classes.map((name) => {
      const bar = make("div", bars);
      bar.title = name;
      make("span", names, name);
      return [make("i", bar), make("b", bar)];
    });
    model.note = make("p", box, "", "still");
  }

  const slider = (name, key) => {
    const label = make("label", controls), head = make("span", label);
    make("span", head, name);
    const value = make("span", head), input = make("input", label);
    Object.assign(input, { type: "range", min: 0, max: 100, step: 1, value: 0 });
    input.setAttribute("aria-label", name);
    input.addEventListener("input", () => { state[key] = input.value / 100; update(); });
    return () => { input.value = 100 * state[key]; value.textContent = `${Math.round(100 * state[key])} %`; };
  };
  const scales = data.layers.some((l) => l.scales);
  const sliders = [
    slider("neurons permuted", "permuted"),
    slider(scales ? "neurons rescaled" : "neurons with the sign flipped", "scaled"),
  ];
  const buttons = make("div", controls, "", "buttons");
  const shuffle = make("button", buttons, "Shuffle"), back = make("button", buttons, "Back");
  for (const button of [shuffle, back]) button.type = "button";
  shuffle.addEventListener("click", () => { drawAnew(); state.permuted = 1; state.scaled = scales ? 1 : 0.5; update(); });
  back.addEventListener("click", () => { state.permuted = state.scaled = 0; update(); });

  const thumbnails = networks.map((network, i) => {
    const button = make("button", choose);
    button.type = "button";
    button.setAttribute("aria-label", `network of ${network.label}`);
    network.picture = Array.from(render(network.parameters));
    show(make("canvas", button), network.picture);
    button.addEventListener("click", () => { state.network = i; update(); });
    return button;
  });

  // -- one turn ------------------------------------------------------------------------------------------------------
  const update = () => {
    const network = networks[state.network], now = moved(network.parameters);
    const same = largest(now, network.parameters) === 0;
    network.before ??= models.map((m) => softmax(m.run(network.parameters)));
    sliders.forEach((refresh) => refresh());
    thumbnails.forEach((b, i) => b.setAttribute("aria-pressed", i === state.network));

    let changed = 0;
    now.forEach((v, i) => { changed += v !== network.parameters[i]; });
    weightsNote.textContent = `${changed.toLocaleString("en")} of ${now.length.toLocaleString("en")} numbers differ`;
    for (const { tensor: { start, source, target }, canvas } of sheets) {
      const rows = data.layers[target].size, columns = data.layers[source].size;
      const part = now.subarray(start, start + rows * columns);
      const top = part.reduce((most, v) => Math.max(most, Math.abs(v)), 1e-30);
      if (columns < rows) paint(canvas, columns, rows, (i) => diverging(part[(i % rows) * columns + Math.floor(i / rows)] / top));
      else paint(canvas, rows, columns, (i) => diverging(part[i] / top));
    }

    const pixels = Array.from(render(now)), off = largest(pixels, network.picture);
    show(drawing, pixels);
    pictureNote.textContent = same ? "as it was fitted" : `the same: no pixel differs by more than ${small(off)}`;

    models.forEach((model, m) => {
      const before = network.before[m], after = same ? before : softmax(model.run(now));
      const change = largest(after, before), kept = change < 1e-6;
      model.bars.forEach(([fill, mark], c) => {
        fill.style.height = `${100 * after[c]}%`;
        mark.style.bottom = `calc(${100 * before[c]}% - ${before[c] > 0.5 ? 2 : 0}px)`;
      });
      model.verdict.textContent = same ? "" : kept ? "stays still" : "moves";
      model.verdict.className = `verdict ${same ? "" : kept ? "kept" : "moved"}`;
      const [was, is] = [before, after].map((p) => `“${data.classes[best(p)]}” (${(100 * Math.max(...p)).toFixed(1)} %)`);
      const largestText = change < 0.005 ? small(change) : change.toFixed(2);
      model.note.textContent = same ? `says ${was}` : `before ${was}, now ${is}; largest change of a probability ${largestText}`;
    });
  };
  drawAnew();
  update();
};
