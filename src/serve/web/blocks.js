// What a stream tells of its blocks, laid over its text. No DOM.
//
// Each verify step of the target model commits the drafted tokens that it agreed with and one token of its own, the
// bonus. The server says for each chunk how many tokens were drafted and accepted, and what text each token stands for.

const kPartOfCharacter = '\uFFFD';

export class BlockTrace {
  text = ''; // the thoughts, if there are any, and then the answer
  #contentStart = null; // where the answer begins, once it has
  // [{start, end, kind}], ascending and disjoint: stretches of `text` by where they come from, 'accepted' or 'bonus'.
  marks = [];
  // [{at, rejected}]: after which offset of `text` how many drafted tokens were thrown away.
  rejections = [];
  // [{drafted, accepted, tokens}]: the verify steps in order. The first token comes from the prompt's own pass.
  steps = [];
  tokens = 0;
  drafted = 0;
  accepted = 0;
  reported = false; // the server tells of its blocks
  #begun = false; // a token of the request has come
  #placed = 0; // up to here the text has its marks
  #waiting = []; // tokens whose text has not come yet: {piece, kind, rejected, begun}

  // `block` is the chunk's {drafted, accepted, tokens, pieces}, if it has one.
  add(content, block, thoughts = '') {
    if (block && block.tokens > 0) this.#addBlock(block);
    // Thoughts after the answer began have no place in it.
    if (this.#contentStart === null) this.text += thoughts;
    if (content !== '') {
      this.#contentStart ??= this.text.length;
      this.text += content;
    }
    if (this.reported) this.#place();
  }

  // Where in `text` the answer begins.
  get contentStart() {
    return this.#contentStart ?? this.text.length;
  }
  get content() {
    return this.text.slice(this.contentStart);
  }
  get thoughts() {
    return this.text.slice(0, this.contentStart);
  }

  // Nothing follows: what the tokens without text rejected (the last one ends the answer) stands behind it.
  end() {
    const rejected = this.#waiting.reduce((sum, token) => sum + token.rejected, 0);
    this.#waiting = [];
    if (rejected > 0) this.rejections.push({at: this.text.length, rejected});
  }

  // Another request goes on with the text: what the one before it held back does not come.
  resume() {
    this.end();
    this.#placed = this.text.length;
    this.#begun = false;
  }

  // Up to where nothing about the marks of `text` will change.
  get settled() {
    return this.reported ? this.#placed : this.text.length;
  }

  // Tokens per verify step, the prompt's own token not counted; null before the first step.
  get acceptanceLength() {
    const inSteps = this.steps.reduce((sum, {tokens}) => sum + tokens, 0);
    return this.steps.length > 0 ? inSteps / this.steps.length : null;
  }

  #addBlock({drafted, accepted, tokens, pieces = []}) {
    const first = !this.#begun && drafted === 0;
    this.#begun = true;
    this.reported = true;
    this.tokens += tokens;
    this.drafted += drafted;
    this.accepted += accepted;
    if (!first) this.steps.push({drafted, accepted, tokens});
    pieces.forEach((piece, i) => {
      const kind = drafted === 0 ? 'plain' : i < accepted ? 'accepted' : 'bonus';
      const rejected = i === pieces.length - 1 ? drafted - accepted : 0;
      this.#waiting.push({piece, kind, rejected});
    });
  }

  // Text may come later than its tokens (a stop string may begin in it, a character may be incomplete) or before them
  // (at the end of an answer), and special tokens have none at all.
  #place() {
    while (this.#placed < this.text.length && this.#waiting.length > 0) {
      const rest = this.text.slice(this.#placed);
      const token = this.#waiting[0];
      if (token.piece.length > rest.length && token.piece.startsWith(rest)) {
        this.#claim(rest.length, token);
        token.piece = token.piece.slice(rest.length);
        return;
      }
      if (this.#dropTextless(rest)) continue;
      const length = rest.startsWith(token.piece) ? token.piece.length : this.#lengthOfUnmatched(rest);
      this.#claim(length, this.#waiting[0]);
      this.#endToken();
    }
  }

  // Tokens that stand for no text, such as those that end the thoughts, and line ends that were taken off with them:
  // passed over if the text goes on with a later token.
  #dropTextless(rest) {
    const fits = ({piece}) => piece !== '' && rest.startsWith(piece);
    const next = this.#waiting.findIndex((token) => fits(token) || token.piece.includes(kPartOfCharacter));
    if (next <= 0 || !fits(this.#waiting[next])) return false;
    for (let i = 0; i < next; ++i) this.#endToken();
    return true;
  }

  // A token's own text is not what stands in the answer when a character is made of several tokens: then everything up
  // to the next whole token belongs to them together.
  #lengthOfUnmatched(rest) {
    while (this.#waiting[1]?.piece.includes(kPartOfCharacter)) {
      this.#waiting[1].rejected += this.#waiting.shift().rejected;
    }
    const next = this.#waiting[1]?.piece;
    const found = next ? rest.indexOf(next, 1) : -1;
    return found < 0 ? rest.length : found;
  }

  #claim(length, token) {
    const start = this.#placed;
    this.#placed += length;
    if (token.kind === 'plain' || length === 0) return;
    const last = this.marks.at(-1);
    const continues = last?.end === start && last.kind === token.kind && (token.kind === 'accepted' || token.begun);
    if (continues) {
      last.end = this.#placed;
    } else {
      this.marks.push({start, end: this.#placed, kind: token.kind});
    }
    token.begun = true;
  }

  #endToken() {
    const {rejected} = this.#waiting.shift();
    if (rejected > 0) this.rejections.push({at: this.#placed, rejected});
  }

  // As plain data, and back. The marks are numbers, because there are many of them.
  toRecord() {
    return {
      text: this.text,
      contentStart: this.contentStart,
      marks: this.marks.flatMap(({start, end, kind}) => [start, end, kKinds.indexOf(kind)]),
      rejections: this.rejections.flatMap(({at, rejected}) => [at, rejected]),
      steps: this.steps.flatMap(({drafted, accepted, tokens}) => [drafted, accepted, tokens]),
      totals: [this.tokens, this.drafted, this.accepted],
      reported: this.reported,
    };
  }

  // Throws for what toRecord() did not write: a file may hold anything.
  static fromRecord({text, contentStart, marks, rejections, steps, totals, reported}) {
    const trace = new BlockTrace();
    if (typeof text !== 'string' || typeof reported !== 'boolean') throw new TypeError('an answer has no text');
    trace.text = text;
    trace.#placed = text.length;
    [trace.#contentStart] = groups([contentStart], 1, text.length)[0];
    trace.marks = groups(marks, 3, text.length).map(([start, end, kind]) => ({start, end, kind: kKinds[kind]}));
    trace.rejections = groups(rejections, 2).map(([at, rejected]) => ({at, rejected}));
    trace.steps = groups(steps, 3).map(([drafted, accepted, tokens]) => ({drafted, accepted, tokens}));
    [trace.tokens, trace.drafted, trace.accepted] = groups(totals, 3)[0];
    trace.reported = reported;
    const ordered = trace.marks.every(({start, end, kind}, i) => {
      return kind && start < end && start >= (trace.marks[i - 1]?.end ?? 0);
    });
    const columns = trace.steps.every(
      ({drafted, accepted, tokens}) => accepted <= drafted && tokens <= kMostOfStep && drafted <= kMostOfStep,
    );
    if (!ordered || !columns) throw new TypeError('the marks of an answer are out of order');
    return trace;
  }
}

const kKinds = ['accepted', 'bonus'];
const kMostOfStep = 4096; // tokens: more than any block has

// A flat list of whole numbers from 0 to `most` in groups of `size`.
function groups(list, size, most = Number.MAX_SAFE_INTEGER) {
  const fits = (value) => Number.isSafeInteger(value) && value >= 0 && value <= most;
  if (!Array.isArray(list) || list.length % size !== 0 || !list.every(fits))
    throw new TypeError('not a list of numbers');
  return Array.from({length: list.length / size}, (_, i) => list.slice(i * size, (i + 1) * size));
}
