// The page before a scripted server, for the tests of one `describe`.
import {after, before} from 'node:test';
import {closePage, launch, openPage} from './browser.mjs';
import {startMock} from './mock_server.mjs';

// {withPage(script, options, act), mock()}. A page may complain of nothing while it is open. `steps` are those of scripts
// that bring none.
export function scriptedPage(steps) {
  let browser;
  let mock;
  before(async () => {
    browser = await launch();
    mock = await startMock({steps});
  });
  after(async () => {
    await browser.close();
    mock.stop();
  });
  return {
    mock: () => mock,
    async withPage(script, options, act) {
      mock.script = {steps, ...script};
      mock.requests.length = 0;
      const page = await openPage(browser, mock.url, options);
      await act(page);
      await closePage(page);
    },
  };
}
