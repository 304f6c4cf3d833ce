// One answer as it arrives: its text, its blocks and its figures. No DOM.
import {BlockTrace} from './blocks.js';

export class Answer {
  trace = new BlockTrace();
  finish = null; // 'stop', 'length', … once the server has said so
  #usage = null;
  #timing = null; // the server's own: {ttft_s, total_s}
  #sentAt;
  #firstAt = null;
  #lastAt = null;
  #before = 0; // tokens of the requests that this one goes on with
  #kept = null; // {tokens, firstToken, rate, context} of an answer that was read from a record

  // Times are milliseconds of one clock.
  constructor(sentAt) {
    this.#sentAt = sentAt;
  }

  // This answer, as a request that was sent at `sentAt` goes on with it: rate and first token are that request's.
  resumed(sentAt) {
    const answer = new Answer(sentAt);
    answer.trace = this.trace;
    answer.trace.resume();
    answer.#before = this.tokens ?? 0;
    return answer;
  }

  take(chunk, now) {
    this.#usage = chunk.usage ?? this.#usage;
    this.#timing = chunk.volley?.timing ?? this.#timing;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const {content, reasoning_content: reasoning} = choice.delta ?? {};
    this.trace.add(content ?? '', chunk.volley, reasoning ?? '');
    if (choice.finish_reason) {
      this.finish = choice.finish_reason;
      this.trace.end();
    }
    if (content || reasoning || chunk.volley?.tokens > 0) {
      this.#firstAt ??= now;
      this.#lastAt = now;
    }
  }

  get tokens() {
    if (this.#kept) return this.#kept.tokens;
    if (this.trace.reported) return this.trace.tokens;
    return this.#usage ? this.#before + this.#usage.completion_tokens : this.#before || null;
  }

  // Tokens of the model's context that the prompt and this answer take; null where the server has not told.
  get context() {
    if (this.#kept) return this.#kept.context;
    return this.#usage ? this.#usage.prompt_tokens + this.#usage.completion_tokens : null;
  }

  get accepted() {
    return this.trace.reported
      ? this.trace.accepted
      : (this.#usage?.completion_tokens_details?.accepted_prediction_tokens ?? 0);
  }

  // The share of drafted tokens that was accepted; null if none was drafted.
  get acceptedShare() {
    return this.trace.drafted > 0 ? this.trace.accepted / this.trace.drafted : null;
  }

  // Milliseconds from sending the request to the first token's arrival here.
  get firstToken() {
    if (this.#kept) return this.#kept.firstToken;
    return this.#firstAt === null ? null : this.#firstAt - this.#sentAt;
  }

  // Tokens per second after the first: by the server's clock where it tells, because a fast answer arrives here in very
  // few pieces.
  get rate() {
    if (this.#kept) return this.#kept.rate;
    const {ttft_s: first, total_s: total} = this.#timing ?? {};
    const seconds = total === undefined ? (this.#lastAt - this.#firstAt) / 1000 : total - first;
    const tokens = this.tokens - this.#before;
    return tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null;
  }

  // As plain data, and back; fromRecord throws for what toRecord did not write.
  toRecord() {
    const {finish, tokens, firstToken, rate, context} = this;
    return {trace: this.trace.toRecord(), finish, tokens, firstToken, rate, context};
  }

  static fromRecord({trace, finish, tokens, firstToken, rate, context = null}) {
    const answer = new Answer(0);
    answer.trace = BlockTrace.fromRecord(trace);
    const known = [tokens, firstToken, rate, context].every((value) => value === null || Number.isFinite(value));
    if (!known || (finish !== null && typeof finish !== 'string'))
      throw new TypeError('the figures of an answer are none');
    answer.finish = finish;
    answer.#kept = {tokens, firstToken, rate, context};
    return answer;
  }
}

const kWhole = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const kTenths = new Intl.NumberFormat('en', {minimumFractionDigits: 1, maximumFractionDigits: 1});
const kHundredths = new Intl.NumberFormat('en', {minimumFractionDigits: 2, maximumFractionDigits: 2});

// Figures as text; what is not known is a dash.
export const format = {
  count: (value) => (value === null ? '–' : kWhole.format(value)),
  rate: (value) => (value === null ? '–' : value < 100 ? kTenths.format(value) : kWhole.format(value)),
  length: (value) => (value === null ? '–' : kTenths.format(value)),
  factor: (value) => kHundredths.format(value),
  share: (value) => (value === null ? '–' : `${kWhole.format(value * 100)} %`),
  time: (ms) =>
    ms === null ? '–' : ms < 9950 ? `${kWhole.format(Math.max(1, ms))} ms` : `${kTenths.format(ms / 1000)} s`,
};

// How much of a context of `most` tokens is used, in words and from 0 to 1; null where that is not known.
export function contextUse(used, most) {
  if (used === null || most === null) return null;
  const share = Math.min(used / most, 1);
  const full = share === 1;
  return {
    share,
    near: share >= 0.9,
    full,
    text: full ? 'The context is full: start a new chat.' : `${format.share(share)} of context`,
    figures: `${format.count(used)} of the ${format.count(most)} tokens that the model’s context holds`,
  };
}

// What a pair of answers to one prompt and one seed shows: a sentence, and their rates where those can be compared. Either
// may be missing.
export function verdict(speculative, plain) {
  if (!speculative?.finish || !plain?.finish) {
    return {text: 'Not compared: one of the two did not reach its end.', rates: null};
  }
  if (plain.accepted > 0) return {text: 'Not compared: this server speculates whatever the request says.', rates: null};
  const rates = speculative.rate === null || plain.rate === null ? null : [speculative.rate, plain.rate];
  if (speculative.trace.text !== plain.trace.text) return {text: 'The two texts differ.', rates};
  const same = `The same text, ${format.count(speculative.tokens)} tokens`;
  if (!rates) return {text: `${same}.`, rates};
  return {text: `${same}, ${format.factor(rates[0] / rates[1])} times as fast with speculation.`, rates};
}
