export {render} from 'katex';
