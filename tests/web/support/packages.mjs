// The packages of package.json, which scripts/setup-web-tests.sh installs into the build folder.
import {createRequire} from 'node:module';
import {fileURLToPath} from 'node:url';

export const kRoot = fileURLToPath(new URL('../../../', import.meta.url));
const require = createRequire(`${kRoot}build/web-tests/package.json`);

export const {chromium} = require('playwright-core');
export const axeSource = require('axe-core').source;
