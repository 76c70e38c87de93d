-- What the owner has decided about the tools of MCP servers, each with the definition that was decided about.

CREATE TABLE mcp_pins (
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    place TEXT NOT NULL,
    digest TEXT NOT NULL,
    definition TEXT NOT NULL,
    accepted BIGINT NOT NULL,
    decided_ms BIGINT NOT NULL,
    decided_by TEXT NOT NULL,
    PRIMARY KEY (server, tool)
);
