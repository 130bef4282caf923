-- Chunks are slices of their clean text. One pass per statement: cutting every chunk out of a text of megabytes would
-- walk it from the front each time (UTF-8 has no random access), so a window moves along with the chunks.
CREATE FUNCTION quarry.check_slices() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    slice record;
    source bigint;
    rest text;
    at bigint;
BEGIN
    FOR slice IN
        SELECT c.clean_text_id, c.start, c."end", c.text FROM changed c ORDER BY c.clean_text_id, c.start
    LOOP
        IF source IS DISTINCT FROM slice.clean_text_id THEN
            source := slice.clean_text_id;
            SELECT t.text INTO rest FROM quarry.clean_text t WHERE t.id = source;
            at := 0;
        END IF;
        IF slice.start - at > 65536 THEN
            rest := substr(rest, (slice.start - at)::int + 1);
            at := slice.start;
        END IF;
        IF substr(rest, (slice.start - at)::int + 1, (slice."end" - slice.start)::int) IS DISTINCT FROM slice.text THEN
            RAISE EXCEPTION 'chunk [%, %) is not that slice of clean_text %', slice.start, slice."end", source
                USING ERRCODE = 'check_violation', CONSTRAINT = 'chunk_is_slice', TABLE = 'chunk', SCHEMA = 'quarry';
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE TRIGGER chunk_is_slice_insert AFTER INSERT ON quarry.chunk
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION quarry.check_slices();
CREATE TRIGGER chunk_is_slice_update AFTER UPDATE ON quarry.chunk
    REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION quarry.check_slices();

-- Offsets of chunks and mentions count in it, so it is final.
CREATE FUNCTION quarry.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%.% is final: insert a new row instead', TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'check_violation';
END $$;

CREATE TRIGGER clean_text_is_final BEFORE UPDATE OF text, blob_sha256 ON quarry.clean_text
    FOR EACH ROW EXECUTE FUNCTION quarry.refuse_change();

-- Casts for the typed views: what does not fit the type is NULL, so that one bad value never hides a row.
-- Numbers and booleans may come as JSON or as text. They run with the reader's rights: PUBLIC may EXECUTE them, but what
-- they call must lie in pg_catalog, for the schema `quarry` is closed to readers.
CREATE FUNCTION quarry.to_numeric(value jsonb) RETURNS numeric LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    IF jsonb_typeof(value) = 'number' THEN
        RETURN value::numeric;
    ELSIF jsonb_typeof(value) = 'string' AND value #>> '{}' ~ '^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?\s*$' THEN
        RETURN (value #>> '{}')::numeric;
    END IF;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

CREATE FUNCTION quarry.to_bigint(n numeric) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE WHEN n = trunc(n) AND n BETWEEN -9223372036854775808 AND 9223372036854775807 THEN n::bigint END
$$;

CREATE FUNCTION quarry.to_boolean(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE lower(value #>> '{}') WHEN 'true' THEN true WHEN 'false' THEN false END
$$;

-- ISO 8601 only: PostgreSQL's own input also takes 'yesterday' and depends on DateStyle.
CREATE FUNCTION quarry.to_date(value jsonb) RETURNS date LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    parts text[] := regexp_match(value #>> '{}', '^\s*(\d{4})-(\d{2})-(\d{2})(?:$|[T\s])');
BEGIN
    RETURN make_date(parts[1]::int, parts[2]::int, parts[3]::int);
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

-- Without an offset the time is taken as UTC.
CREATE FUNCTION quarry.to_timestamptz(value jsonb) RETURNS timestamptz
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    source text := value #>> '{}';
BEGIN
    IF source ~ '^\s*\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?\s*$' THEN
        RETURN source::timestamp AT TIME ZONE 'UTC';
    ELSIF source ~ '^\s*\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?\s*(Z|z|[-+]\d{2}(:?\d{2})?)\s*$' THEN
        RETURN source::timestamptz;
    END IF;
    RETURN NULL;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

-- A lone value is a list of one; nested values keep their JSON text.
CREATE FUNCTION quarry.to_text_array(value jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE jsonb_typeof(value)
        WHEN 'array' THEN ARRAY(SELECT e.v #>> '{}' FROM jsonb_array_elements(value) WITH ORDINALITY AS e(v, n) ORDER BY n)
        WHEN 'null' THEN NULL
        ELSE ARRAY[value #>> '{}']
    END
$$;

-- Readers get the typed views and nothing else. A view reads its tables with its owner's rights.
CREATE SCHEMA IF NOT EXISTS entities;
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'quarry_reader') THEN
        CREATE ROLE quarry_reader NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;  -- another database of this server was migrated just now
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'role % may not create the role quarry_reader', current_user
            USING HINT = 'As an administrator: CREATE ROLE quarry_reader NOLOGIN; then migrate again.';
END $$;
DO $$
BEGIN
    IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        EXECUTE format('GRANT quarry_reader TO %I', current_user);  -- so that `sql` may SET ROLE
    END IF;
END $$;
REVOKE ALL ON SCHEMA quarry FROM PUBLIC;
GRANT USAGE ON SCHEMA entities TO quarry_reader;
ALTER DEFAULT PRIVILEGES IN SCHEMA entities GRANT SELECT ON TABLES TO quarry_reader;

-- A query that any of the text's words satisfies; ranking sorts out how many do. websearch_to_tsquery would want them all.
CREATE FUNCTION quarry.any_word(config regconfig, words text) RETURNS tsquery
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT coalesce(
        (SELECT string_agg(format('''%s''', replace(replace(l.lexeme, '\', '\\'), '''', '''''')), ' | ') FROM unnest(to_tsvector(config, words)) AS l)::tsquery,
        ''::tsquery)
$$;
