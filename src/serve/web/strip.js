// The strip below an answer: a column for each verify step, drafted tokens from the bottom up. Accepted ones are solid
// bars, the bonus is a diamond on top of them, rejected ones are hollow. A plain step, for which nothing was drafted, is a
// dot.

const kNamespace = 'http://www.w3.org/2000/svg';
const kPitch = 10; // from column to column
const kWidth = 8;
const kCell = 5; // height of a token, its gap included

export class Strip {
  #svg = document.createElementNS(kNamespace, 'svg');
  #paths = {};
  #drawn = 0;
  #tallest = 0;
  #scroller;

  // `height`: tokens that a column may have, for which there is room from the start.
  constructor(figure, height) {
    this.#tallest = height;
    this.#svg.setAttribute('aria-hidden', 'true');
    for (const kind of ['rejected', 'accepted', 'bonus', 'plain']) {
      const path = this.#svg.appendChild(document.createElementNS(kNamespace, 'path'));
      path.setAttribute('class', kind);
      this.#paths[kind] = {path, data: ''};
    }
    this.#scroller = figure.querySelector('.strip-scroller');
    this.#scroller.append(this.#svg);
    this.#size(0);
  }

  update(steps) {
    if (this.#drawn === steps.length) return;
    for (; this.#drawn < steps.length; ++this.#drawn) this.#column(this.#drawn * kPitch, steps[this.#drawn]);
    for (const {path, data} of Object.values(this.#paths)) path.setAttribute('d', data);
    this.#size(steps.length);
    this.#scroller.scrollLeft = this.#scroller.scrollWidth;
    this.#scroller.setAttribute('aria-label', describe(steps));
  }

  #size(columns) {
    const [width, height] = [columns * kPitch, this.#tallest * kCell + 1];
    this.#svg.setAttribute('viewBox', `-0.5 ${-height} ${Math.max(width, 1)} ${height}`);
    this.#svg.setAttribute('width', width);
    this.#svg.setAttribute('height', height);
  }

  // y grows downwards, and the bottom of the strip is 0.
  #column(x, {drafted, accepted, tokens}) {
    const bar = (i) => `M${x} ${-i * kCell - 1}h${kWidth - 1}v${1.5 - kCell}h${1 - kWidth}z`;
    for (let i = 0; i < accepted; ++i) this.#paths.accepted.data += bar(i);
    const bonus = tokens - accepted;
    if (drafted === 0) {
      const middle = -kCell / 2 - 0.25;
      this.#paths.plain.data += `M${x + 1.5} ${middle}a2 2 0 1 0 4 0a2 2 0 1 0 -4 0z`;
    } else if (bonus > 0) {
      const middle = -accepted * kCell - kCell / 2 - 0.25;
      this.#paths.bonus.data += `M${x + (kWidth - 1) / 2} ${middle - 2.6}l3 2.6l-3 2.6l-3 -2.6z`;
    }
    for (let i = accepted + bonus; i < drafted + bonus; ++i) this.#paths.rejected.data += bar(i);
    this.#tallest = Math.max(this.#tallest, drafted + bonus, accepted + bonus);
  }
}

function describe(steps) {
  const shown = steps
    .slice(-40)
    .map(({tokens, drafted, accepted}) => `${tokens} (${drafted === 0 ? 'plain' : `${drafted - accepted} rejected`})`);
  const which = steps.length > 40 ? `the last 40 of ${steps.length} steps` : `${steps.length} steps`;
  return `Tokens of each step, ${which}: ${shown.join(', ')}`;
}
