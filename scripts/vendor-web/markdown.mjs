// The Markdown reader of the page: CommonMark with tables, struck text, task lists and formulas, as a tree (mdast) that
// says of each node where in the source it stands.
import {fromMarkdown} from 'mdast-util-from-markdown';
import {gfmStrikethroughFromMarkdown} from 'mdast-util-gfm-strikethrough';
import {gfmTableFromMarkdown} from 'mdast-util-gfm-table';
import {gfmTaskListItemFromMarkdown} from 'mdast-util-gfm-task-list-item';
import {mathFromMarkdown} from 'mdast-util-math';
import {gfmStrikethrough} from 'micromark-extension-gfm-strikethrough';
import {gfmTable} from 'micromark-extension-gfm-table';
import {gfmTaskListItem} from 'micromark-extension-gfm-task-list-item';
import {math} from 'micromark-extension-math';

const kOptions = {
  // Four spaces are no code: models indent what belongs to a list that they write without one. HTML is text.
  extensions: [
    gfmStrikethrough(),
    gfmTable(),
    gfmTaskListItem(),
    math(),
    {disable: {null: ['codeIndented', 'htmlFlow', 'htmlText']}},
  ],
  mdastExtensions: [
    gfmStrikethroughFromMarkdown(),
    gfmTableFromMarkdown(),
    gfmTaskListItemFromMarkdown(),
    mathFromMarkdown(),
  ],
};

export const readTree = (source) => fromMarkdown(source, kOptions);
