// Searches the pages as readers ask: words such as "how" do not count, a page need not have every word, each page
// comes once, with the section that answers best, and the words of its index entries count as if they stood on it.
// Pages before names of the code: who searches for "cancel" wants to know how. Reference pages come after guides;
// diaries do not come at all.
var Scorer = {objNameMatch: 25, objPartialMatch: 3, objPrio: {0: 5, 1: 2, 2: -5}, objPrioDefault: 0};

// Words that say nothing of what is asked.
const COMMON = new Set(
  ("a about all am an and any are as at be been but by can could did do does doing eventmq find for from get gets give had "
    + "has have how i if in into is it its job jobs let make many me much must my need of on one or our out please python "
    + "see should show so some task tasks tell than that the their them then there these they this to up use using want was "
    + "way we what when where which while who why will with would you your").split(" "),
);

// The points that a page loses for its place.
const LATE = [[/^(changelog|contributing|index)$/, 40], [/^reference\/|^protocol$/, 15], [/^explanation\//, 6]];

const stemmed = new Map();
const stem = (word) => {
  if (!stemmed.has(word)) stemmed.set(word, new Stemmer().stemWord(word));
  return stemmed.get(word);
};

// The stems of the words that count, once each: of all words if none does.
const wordsOf = (text) => {
  const words = text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || [];
  const telling = words.filter((word) => !COMMON.has(word));
  return [...new Set((telling.length ? telling : words).map(stem))];
};

// The titles, sections, index entries and words of each page, by its number.
const readPages = (index) => {
  const pages = index.docnames.map((name, file) => ({
    name,
    file,
    title: wordsOf(index.titles[file]),
    sections: [],
    entries: [],
    terms: new Set(),
  }));
  for (const [title, places] of Object.entries(index.alltitles)) {
    for (const [file, id] of places) if (id) pages[file].sections.push({title, id, words: wordsOf(title)});
  }
  for (const [entry, places] of Object.entries(index.indexentries)) {
    // Those of reference pages are made for each name.
    for (const [file] of places) if (!pages[file].name.startsWith("reference/")) pages[file].entries.push(wordsOf(entry));
  }
  for (const terms of [index.terms, index.titleterms]) {
    for (const [term, files] of Object.entries(terms)) for (const file of [files].flat()) pages[file].terms.add(term);
  }
  for (const {terms, title, entries} of pages) for (const word of [title, ...entries].flat()) terms.add(word);
  return pages.filter(({name}) => !name.startsWith("lab/"));
};

const hasAll = (words, some) => some.length > 0 && some.every((word) => words.includes(word));

// The words of a list that are those of a query; a beginning of three letters or more will do.
const matched = (words, list) =>
  words.filter((word) => list.some((other) => other === word || (word.length > 2 && other.startsWith(word)))).length;

const pointsOf = (page, words, weights) => {
  let points = 0;
  let found = 0;
  for (const word of words) {
    const best = Math.max(
      page.title.includes(word) ? 30 : 0,
      page.entries.some((entry) => entry.includes(word)) ? 26 : 0,
      page.sections.some((section) => section.words.includes(word)) ? 14 : 0,
      page.terms.has(word) ? 5 : 0,
      matched([word], [...page.title, ...page.entries.flat()]) ? 4 : 0,
      matched([word], [...page.terms]) ? 1 : 0,
    );
    points += best * weights.get(word);
    found += best > 0;
  }
  const whole = page.entries.filter((entry) => hasAll(words, entry)).map((entry) => 15 * entry.length);
  if (page.entries.some((entry) => entry.length === words.length && hasAll(words, entry))) whole.push(60);
  if (hasAll(page.title, words)) whole.push(40);
  if (page.sections.some((section) => hasAll(section.words, words))) whole.push(25);
  return {points: points + Math.max(0, ...whole), part: found / words.length};
};

const sectionOf = (page, words) => {
  const byMatch = page.sections
    .map((section) => ({...section, count: matched(words, section.words)}))
    .sort((a, b) => b.count - a.count || a.words.length - b.words.length);
  const best = byMatch[0];
  return best && best.count > matched(words, page.title) && best.count * 2 > words.length ? best : null;
};

const searchPages = (query, objectTerms) => {
  const index = Search._index;
  Search._pages ||= readPages(index);
  const words = wordsOf(query);
  // A word that few pages have says more.
  const weights = new Map(
    words.map((word) => {
      const count = Search._pages.filter((page) => page.terms.has(word)).length;
      return [word, 1 + Math.log10((Search._pages.length + 1) / (count + 1))];
    }),
  );
  const results = [];
  for (const page of Search._pages) {
    const {points, part} = pointsOf(page, words, weights);
    if (part < 0.5) continue;
    const late = LATE.find(([names]) => names.test(page.name))?.[1] || 0;
    const section = sectionOf(page, words);
    const title = index.titles[page.file];
    results.push([
      page.name,
      section ? `${title} > ${section.title}` : title,
      section ? `#${section.id}` : "",
      null,
      Math.max(points * part ** 2 - late, 0.1),
      index.filenames[page.file],
      "text",
    ]);
  }
  const names = new Map();
  for (const term of objectTerms) {
    for (const result of Search.performObjectSearch(term, objectTerms)) {
      // Who types the name of a class, a method or a setting wants that.
      const named = /[a-z][A-Z]|\w[_.]\w/.test(query) && `.${result[1]}`.toLowerCase().endsWith(`.${query.toLowerCase()}`);
      if (named) result[4] += 100;
      names.set(result.slice(0, 3).join(), result);
    }
  }
  return [...results, ...names.values()].sort(_orderResultsByScoreThenName);
};

// Sphinx puts this file behind the script of the search.
Search._performSearch = (query, _, __, ___, objectTerms) => {
  document.getElementById("search-progress")?.replaceChildren();
  const results = searchPages(query, objectTerms);
  return results.length ? results : searchPages(query.replaceAll("_", " "), objectTerms);
};
