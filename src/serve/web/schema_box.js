// The box for a JSON schema that answers must follow: says while one types what is wrong with it. No DOM but the box's.

const kTypes = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null'];

// {schema: null | object, problem: '' | a sentence}. An empty text is no schema and no problem.
export function readSchema(text) {
  if (text.trim() === '') return {schema: null, problem: ''};
  let schema;
  try {
    schema = JSON.parse(text);
  } catch (error) {
    return {schema: null, problem: `Not JSON: ${placeOf(error, text)}`};
  }
  const problem = problemOf(schema, 'The schema');
  return problem ? {schema: null, problem} : {schema, problem: ''};
}

// Browsers say where in words of their own, some by line and some by offset.
function placeOf({message}, text) {
  const offset = /position (\d+)/.exec(message)?.[1];
  if (offset === undefined || /line \d+/.test(message)) return `${message.replace(/^JSON\.parse: /, '')}.`;
  const before = text.slice(0, Number(offset)).split('\n');
  return `${message.replace(/ in JSON at position \d+.*/, '')} in line ${before.length}, column ${before.at(-1).length + 1}.`;
}

// What a server could not know what to do with. It says itself which keywords it does not support.
function problemOf(schema, where) {
  if (typeof schema === 'boolean' && where !== 'The schema') return '';
  if (!isObject(schema)) return `${where} must be an object, such as {"type": "object"}.`;
  const types = [schema.type ?? []].flat();
  const unknown = types.find((type) => !kTypes.includes(type));
  if (unknown !== undefined) return `${where} has the type ${JSON.stringify(unknown)}: use ${kTypes.join(', ')}.`;
  if (schema.enum !== undefined && !(Array.isArray(schema.enum) && schema.enum.length > 0))
    return `"enum" of ${where} must be a list.`;
  const required = schema.required ?? [];
  if (!Array.isArray(required) || !required.every((name) => typeof name === 'string')) {
    return `"required" of ${where} must be a list of names.`;
  }
  for (const keyword of ['properties', '$defs', 'definitions']) {
    if (schema[keyword] === undefined) continue;
    if (!isObject(schema[keyword])) return `"${keyword}" of ${where} must be an object of schemas.`;
    for (const [name, part] of Object.entries(schema[keyword])) {
      const problem = problemOf(part, `“${name}”`);
      if (problem) return problem;
    }
  }
  for (const keyword of ['anyOf', 'oneOf', 'allOf']) {
    if (schema[keyword] !== undefined && !Array.isArray(schema[keyword]))
      return `"${keyword}" of ${where} must be a list of schemas.`;
  }
  return schema.items === undefined ? '' : problemOf(schema.items, `"items" of ${where}`);
}

function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export class SchemaBox {
  #area;
  #message;

  constructor(area, message) {
    this.#area = area;
    this.#message = message;
    area.addEventListener('input', () => this.check());
  }

  // The schema, null for none; undefined, and the box says why, for what is none.
  check() {
    const {schema, problem} = readSchema(this.#area.value);
    this.#area.setAttribute('aria-invalid', String(problem !== ''));
    this.#area.setCustomValidity(problem);
    this.#message.textContent = problem || (schema ? 'A schema: answers will be JSON that follows it.' : '');
    this.#message.classList.toggle('wrong', problem !== '');
    return problem ? undefined : schema;
  }
}
