// Pages before names of the code: who searches for "cancel" wants to know how. Of pages, those whose title or index
// entries have the words of the query come first, and diaries and the changelog last.
var Scorer = {
  objNameMatch: 6,
  objPartialMatch: 3,
  objPrio: {0: 5, 1: 2, 2: -5},
  objPrioDefault: 0,
  title: 30,
  partialTitle: 15,
  term: 5,
  partialTerm: 2,

  score: ([docname, title, , , score, , kind]) => {
    if (kind === "object") return score;
    const words = Scorer._words(new URLSearchParams(location.search).get("q") || "");
    const phrase = words.join(" ");
    const entries = Scorer._entriesOf(docname);
    const page = Scorer._words(title);
    let points = /^(lab|reference)\/|^(changelog|contributing|index)$/.test(docname) ? -10 : 0;
    if (/^explanation\//.test(docname)) points -= 5;
    for (const word of words) {
      if (page.includes(word)) points += 20;
      if (entries.some((entry) => entry.split(" ").includes(word))) points += 10;
    }
    if (phrase && entries.includes(phrase)) points += 40;
    return score + points;
  },

  // The words of a text that say what it is about, without an "s" at the end.
  _words: (text) =>
    text
      .toLowerCase()
      .split(/[^a-z0-9]+/)
      .filter((word) => word.length > 1 && !Scorer._common.has(word))
      .map((word) => (word.length > 3 ? word.replace(/s$/, "") : word)),

  _common: new Set(
    "an and are at can eventmq job jobs task tasks do does for from get has have how in is it its my of on or set the to use was what when why with".split(" "),
  ),

  _entriesOf: (docname) => {
    if (!Scorer._entries) {
      Scorer._entries = new Map();
      for (const [entry, places] of Object.entries(Search._index.indexentries)) {
        for (const [file] of places) {
          const name = Search._index.docnames[file];
          if (!Scorer._entries.has(name)) Scorer._entries.set(name, []);
          Scorer._entries.get(name).push(Scorer._words(entry).join(" "));
        }
      }
    }
    return Scorer._entries.get(docname) || [];
  },
};
