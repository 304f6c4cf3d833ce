// A formula as KaTeX sets it: elements and their styles, made without any HTML text.
import {make} from './dom.js';
import {Library} from './library.js';

const katex = new Library(async () => {
  const style = make('link');
  style.rel = 'stylesheet';
  style.href = 'web/vendor/katex.css';
  document.head.append(style);
  return import('./vendor/katex.js');
});

const kOptions = {
  trust: false, // no links, no pictures, no classes and styles of the formula's own
  strict: 'ignore',
  maxSize: 20,
  maxExpand: 500,
  // These two would set styles as text, which the page's policy forbids.
  macros: {'\\fcolorbox': '\\colorbox{#2}{#3}', '\\pmb': '\\boldsymbol{#1}'},
};

// Until KaTeX is there, and where it cannot read the formula, its source stands in its place.
export function formulaElement({formula, display, raw, redraw}) {
  const element = make(display ? 'div' : 'span', display ? 'formula display' : 'formula');
  if (display) element.tabIndex = 0; // wide ones are scrolled by keyboard too
  const library = katex.get(redraw);
  try {
    if (!library) throw new Error('not loaded yet');
    library.render(formula, element, {...kOptions, macros: {...kOptions.macros}, displayMode: display});
  } catch {
    element.classList.add('unset');
    element.replaceChildren(make('code', '', raw));
  }
  return element;
}
