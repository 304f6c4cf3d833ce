// Questions that the reader answers before something is lost.

const $ = (id) => document.getElementById(id);

// Whether the reader wants it: `action` is what the button says.
export function confirmed(question, action) {
  const dialog = $('confirm-dialog');
  $('confirm-question').textContent = question;
  $('confirm-yes').textContent = action;
  dialog.returnValue = '';
  dialog.showModal();
  $('confirm-no').focus();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), {once: true});
  });
}

// A sentence above the composer that stays until it is closed or another takes its place; null: none.
export function showNotice(sentence) {
  $('notice-text').textContent = sentence ?? '';
  $('notice').hidden = sentence === null;
}
$('notice-close').addEventListener('click', () => showNotice(null));
