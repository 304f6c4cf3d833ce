// The few ways in which this page makes elements. Text is always text.

export function make(tag, className = '', text = '') {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

export function makeButton(text, act, className = 'quiet') {
  const button = make('button', className, text);
  button.type = 'button';
  button.addEventListener('click', () => act(button));
  return button;
}

export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages without TLS have no clipboard interface.
    const area = document.body.appendChild(make('textarea', 'hidden'));
    area.value = text;
    area.select();
    document.execCommand('copy');
    area.remove();
    button.focus();
  }
  button.textContent = 'Copied';
  setTimeout(() => (button.textContent = 'Copy'), 1500);
}

// The browser keeps `text` as a file of this name.
export function saveFile(name, text) {
  const link = make('a');
  link.href = URL.createObjectURL(new Blob([text], {type: 'application/json'}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
