"""`python -m billing_jobs.clickhouse.list_functions`: writes the functions that analysts may call into `functions.txt`.

They are those of the engine that is installed without those below, so that a new engine's are allowed only once
somebody has run this and looked at the difference.
"""

from importlib.resources import files
from pathlib import Path

from billing_jobs.embedded import connect

FILE = "functions.txt"
_KINDS_LEFT_OUT = {"AI", "Dictionary", "Embedded Dictionary", "Internal", "Introspection", "Machine Learning", "NLP"}
"""They ask models and dictionaries of the machine, or look into the process."""
_NEEDED_ALL_THE_SAME = {"_CAST", "caseWithExpression", "nested"}
_LEFT_OUT = frozenset(
    """
    aggthrow authenticateduser authuser blockserializedsize blocksize buildid bytesize catboostevaluate chdb
    connection_id connectionid currenthandler currentprofiles currentrequesturl currentroles defaultprofiles
    defaultroles dumpcolumnstructure enabledprofiles enabledroles estimatecompressionratio evalmlmethod file
    filesystemavailable filesystemcapacity filesystemunreserved finalizeaggregation flamegraph formatqueryfromjson
    formatrow formatrownonewline fqdn fullhostname fuzzquery generaterandomstructure generateserialid
    getclienthttpheader getmacro getmaxtablenamelengthfordatabase getmergetreesetting getoskernelversion
    getserverport getserversetting getsetting getsettingordefault gettypeserializationstreams globalvariable
    groupformat hascolumnintable hasthreadfuzzer hostname initializeaggregation joinget joingetornull lemmatize
    lowcardinalityindices lowcardinalitykeys mergetreepartinfo parsequerytojson partitionid runningaccumulate
    runningconcurrency serveruuid showcertificate sleep sleepeachrow stem structuretocapnprotoschema
    structuretoprotobufschema synonyms tcpport tid transactionid transactionlatestsnapshot transactionoldestsnapshot
    uptime zookeepersessionuptime
    """.split()  # noqa: SIM905 - a page of names
)
"""They look into the process or its tables, write files, wait, or make and read states of aggregate functions."""


def _is_offered(name: str, alias_to: str, category: str) -> bool:
    if name in _NEEDED_ALL_THE_SAME:
        return True
    return not ({name.lower(), alias_to.lower()} & _LEFT_OUT or category in _KINDS_LEFT_OUT or name.startswith("__"))


def main() -> None:
    said = connect(":memory:").query("SELECT name, alias_to, categories FROM system.functions", "TabSeparated")
    rows = said.bytes().decode().splitlines()
    functions = [tuple(row.split("\t")) for row in rows]
    kind_of = {name: category for name, _, category in functions}
    offered = {
        name.lower()
        for name, alias_to, category in functions
        if _is_offered(name, alias_to, category or kind_of.get(alias_to, ""))
    }
    path = Path(str(files("billing_jobs.clickhouse") / FILE))
    path.write_text("".join(f"{name}\n" for name in sorted(offered)))
    print(f"{len(offered)} of {len(functions)} functions: {path.name}")


if __name__ == "__main__":
    main()
