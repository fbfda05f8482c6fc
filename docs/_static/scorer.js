// Pages before names of the code: who searches for "cancel" wants to know how.
var Scorer = {
  objNameMatch: 6,
  objPartialMatch: 3,
  objPrio: {0: 5, 1: 2, 2: -5},
  objPrioDefault: 0,
  title: 30,
  partialTitle: 15,
  term: 5,
  partialTerm: 2,
};
