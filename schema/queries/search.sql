-- name: count_words
-- Number of words in a search; 0: it finds nothing.
SELECT numnode(websearch_to_tsquery('simple', %(words)s)) AS words

-- name: search_words
-- Rows whose prompt or response contains the words, best match first, in :run, or in all runs if that is NULL. It
-- reads each text, since an index would slow down every write. Of a longer text it reads the first
-- 200,000 characters, because more words do not fit a tsvector; of a text over 250,000 bytes it reads :characters. A
-- tsvector contains hyphenated words as a whole and in parts, so 60,000 characters of at most four bytes always fit.
-- Adopted rows share the text of their source, and are found only in a search of that run.
SELECT e.id AS experience, r.name AS run, e.state::text AS state, e.version_max AS version, e.reward,
       ts_rank_cd(d.document, q.wanted)::float8 AS score, x.prompt, x.response
FROM websearch_to_tsquery('simple', %(words)s) AS q (wanted)
CROSS JOIN trinity.experience e
JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
JOIN trinity.run r ON r.id = e.run_id
CROSS JOIN LATERAL left(x.prompt || ' ' || x.response, 200000) AS t (beginning)
CROSS JOIN LATERAL to_tsvector('simple', CASE WHEN octet_length(t.beginning) > 250000
                                              THEN left(t.beginning, %(characters)s::integer)
                                              ELSE t.beginning END) AS d (document)
WHERE (e.run_id = %(run_id)s::bigint OR %(run_id)s::bigint IS NULL AND e.source_id IS NULL) AND d.document @@ q.wanted
ORDER BY score DESC, e.id DESC
LIMIT %(limit)s

-- name: response_of
-- The response of a row; an adopted row has its source's.
SELECT x.response
FROM trinity.experience e
JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
WHERE e.id = %(id)s

-- name: searched_after
-- The next rows to search, by id after :after, with their responses.
SELECT e.id, x.response
FROM trinity.experience e
JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
WHERE (e.run_id = %(run_id)s::bigint OR %(run_id)s::bigint IS NULL AND e.source_id IS NULL) AND e.id > %(after)s
ORDER BY e.id
LIMIT %(limit)s

-- name: read_found
-- Rows found by a search, with the columns of search_words.
SELECT e.id AS experience, r.name AS run, e.state::text AS state, e.version_max AS version, e.reward, x.prompt, x.response
FROM trinity.experience e
JOIN trinity.experience_text x ON x.experience_id = coalesce(e.source_id, e.id)
JOIN trinity.run r ON r.id = e.run_id
WHERE e.id = ANY(%(ids)s)
