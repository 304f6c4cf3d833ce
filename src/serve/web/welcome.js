// What the empty page says of a model, and what it proposes to ask. No DOM.

const kPocket = {
  note:
    'The pocket model is a toy of 7 million parameters, which knows four tasks: sums, sorted lists, facts as JSON, ' +
    'and short stories. “volley serve ORG/NAME” takes a model from the local Hugging Face cache.',
  examples: [
    'What is ((17 * 6) - 74) * 8?',
    'Sort these numbers: 50, 49, 35, 79.',
    'Turn the facts into JSON: Mia is 59 years old and lives in Boston.',
    'Tell me a story about a fox and a lantern.',
  ],
};
const kOther = {
  note: '',
  examples: [
    'Why is the sky blue by day and red in the evening?',
    'Write a Python function that finds the longest common prefix of a list of strings.',
    'Summarise “Romeo and Juliet” in three sentences.',
    'Write as JSON with the keys name, age and city: Mia is 59 years old and lives in Boston.',
  ],
};

// {note, examples}. The model that comes with volley is known by its name, as in `volley chat`.
export const welcomeFor = (model) => (model === 'pocket' ? kPocket : kOther);
