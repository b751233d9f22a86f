-- A state of format 3: that of format 2, and since when volumes are attached to nothing.
-- Never edited: `tests/store/test_migrations.py` holds that this version reads it. Made by sqlite3's iterdump.
BEGIN TRANSACTION;
CREATE TABLE generations (
	address TEXT NOT NULL, 
	generation INTEGER NOT NULL, 
	CONSTRAINT pk_generations PRIMARY KEY (address)
);
INSERT INTO "generations" VALUES('volume/data-0',1);
INSERT INTO "generations" VALUES('volume/data-1',1);
INSERT INTO "generations" VALUES('node/gpu-0',1);
INSERT INTO "generations" VALUES('node/gpu-1',1);
INSERT INTO "generations" VALUES('node/old-0',1);
INSERT INTO "generations" VALUES('reservation/train-0',1);
INSERT INTO "generations" VALUES('attachment/train-0.data-0',1);
INSERT INTO "generations" VALUES('rank/train-0',1);
INSERT INTO "generations" VALUES('reservation/train-1',1);
INSERT INTO "generations" VALUES('attachment/train-1.data-1',1);
INSERT INTO "generations" VALUES('rank/train-1',1);
INSERT INTO "generations" VALUES('rank/done-0',1);
INSERT INTO "generations" VALUES('node/idle-0',1);
INSERT INTO "generations" VALUES('node/gpu-2',1);
INSERT INTO "generations" VALUES('volume/data-2',1);
INSERT INTO "generations" VALUES('volume/spare',1);
CREATE TABLE meta (
	id INTEGER NOT NULL CONSTRAINT ck_meta_single CHECK (id = 1), 
	format_version INTEGER NOT NULL, 
	tool TEXT NOT NULL, 
	lineage TEXT, 
	serial INTEGER NOT NULL CONSTRAINT ck_meta_serial CHECK (serial >= 0), 
	CONSTRAINT pk_meta PRIMARY KEY (id)
);
INSERT INTO "meta" VALUES(1,3,'0.1.0','6f1f6a51-6b0f-4a7e-9d2c-3a0a4e3c1b5d',16);
CREATE TABLE needs (
	address TEXT NOT NULL, 
	needed TEXT NOT NULL, 
	CONSTRAINT pk_needs PRIMARY KEY (address, needed), 
	CONSTRAINT fk_needs_address FOREIGN KEY(address) REFERENCES resources (address) ON DELETE CASCADE, 
	CONSTRAINT fk_needs_needed FOREIGN KEY(needed) REFERENCES resources (address) ON DELETE RESTRICT
);
INSERT INTO "needs" VALUES('reservation/train-0','node/gpu-0');
INSERT INTO "needs" VALUES('attachment/train-0.data-0','node/gpu-0');
INSERT INTO "needs" VALUES('attachment/train-0.data-0','reservation/train-0');
INSERT INTO "needs" VALUES('attachment/train-0.data-0','volume/data-0');
INSERT INTO "needs" VALUES('rank/train-0','attachment/train-0.data-0');
INSERT INTO "needs" VALUES('rank/train-0','reservation/train-0');
INSERT INTO "needs" VALUES('reservation/train-1','node/gpu-1');
INSERT INTO "needs" VALUES('attachment/train-1.data-1','node/gpu-1');
INSERT INTO "needs" VALUES('attachment/train-1.data-1','reservation/train-1');
INSERT INTO "needs" VALUES('attachment/train-1.data-1','volume/data-1');
INSERT INTO "needs" VALUES('rank/train-1','attachment/train-1.data-1');
INSERT INTO "needs" VALUES('rank/train-1','reservation/train-1');
CREATE TABLE node_status (
	name TEXT NOT NULL, 
	state TEXT, 
	reason TEXT, 
	observed_at DOUBLE, 
	idle_since DOUBLE, 
	can JSON, 
	CONSTRAINT pk_node_status PRIMARY KEY (name)
);
INSERT INTO "node_status" VALUES('gpu-0','ready',NULL,1760000002.0,NULL,'["hard","podman"]');
INSERT INTO "node_status" VALUES('gpu-1','not_ready','disk pressure',1760000002.0,NULL,'[]');
INSERT INTO "node_status" VALUES('idle-0',NULL,NULL,NULL,1760000003.0,NULL);
CREATE TABLE operations (
	id INTEGER NOT NULL, 
	op TEXT NOT NULL, 
	address TEXT NOT NULL, 
	backend TEXT, 
	generation INTEGER NOT NULL, 
	token TEXT NOT NULL, 
	inputs JSON NOT NULL, 
	needs JSON NOT NULL, 
	begun_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	result TEXT, 
	error TEXT, 
	host TEXT, 
	doing TEXT, 
	CONSTRAINT pk_operations PRIMARY KEY (id)
);
INSERT INTO "operations" VALUES(1,'create','volume/data-0','local',1,'cdf9c5d5b0820c2baa1ccea8de7e9102','{"region":"local","size":"10GB","tags":{"team":"ü"},"zone":null}','[]',1760000000.0,1760000000.0,'done',NULL,NULL,NULL);
INSERT INTO "operations" VALUES(2,'create','volume/data-1','local',1,'b37bbda895c294ebc2e5459c78041f0e','{"region":"local","size":"10GB","tags":{},"zone":null}','[]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(3,'update','volume/data-1','local',1,'b37bbda895c294ebc2e5459c78041f0e','{"region":"local","size":"20GB","tags":{},"zone":null}','[]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(4,'create','node/gpu-0','local',1,'75367f0fd28410e33f65fed354b3184b','{"blocks":4,"price":1.25,"region":"local","zone":"a"}','[]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(5,'create','node/gpu-1','local',1,'2c90eaae8824c175a9600cd689bf7961','{"blocks":2,"price":null,"region":"local","zone":"a"}','[]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(6,'create','node/old-0','local',1,'078c50b60b8d5de3d6a5c212c32f3eeb','{"blocks":1}','[]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(7,'delete','node/old-0','local',1,'078c50b60b8d5de3d6a5c212c32f3eeb','{"blocks":1}','[]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(8,'create','attachment/train-0.data-0','local',1,'d74aa7aba47d68cc0df86d259a10710c','{"node":"gpu-0","path":"/data","rank":"train-0","volume":"data-0"}','["node/gpu-0","reservation/train-0","volume/data-0"]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(9,'create','rank/train-0','local',1,'f1f8c98a9e8cb42bbda655519818a2ed','{"commands":["sleep 1"],"nodes":2,"task":"train"}','["attachment/train-0.data-0","reservation/train-0"]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(10,'create','attachment/train-1.data-1','local',1,'3ec18413b879593ceeadadeb5e6f1c9f','{"node":"gpu-1","path":"/data","rank":"train-1","volume":"data-1"}','["node/gpu-1","reservation/train-1","volume/data-1"]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(11,'create','rank/train-1','local',1,'bf45481d798ccc8d27f864a315631ab2','{"commands":["sleep 1"],"nodes":2,"task":"train"}','["attachment/train-1.data-1","reservation/train-1"]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(12,'create','rank/done-0','local',1,'0c087f8d53e49e1f877a3cecd98e3801','{"commands":["true"],"task":"done"}','[]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(13,'create','node/idle-0','local',1,'c3dc9784390c33391573f466eece0b7b','{"blocks":1}','[]',1760000000.0,1760000000.0,'done',NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(14,'create','node/gpu-2','cloud',1,'c968ff39480d7941f5f565ea7898fe3a','{"zone":"b"}','[]',1760000000.0,1760000000.0,'failed','quota: 0 of 8 left','elsewhere','apply');
INSERT INTO "operations" VALUES(15,'create','volume/data-2','local',1,'a268a0299b6cc2e0e9e7a81ac2db88e5','{"size":"10GB","zone":null}','[]',1760000000.0,NULL,NULL,NULL,'elsewhere','apply');
INSERT INTO "operations" VALUES(16,'delete','rank/done-0','local',1,'0c087f8d53e49e1f877a3cecd98e3801','{}','[]',1760000000.0,NULL,NULL,NULL,'elsewhere','apply');
CREATE TABLE rank_status (
	name TEXT NOT NULL, 
	state TEXT NOT NULL, 
	exit_code INTEGER, 
	cause TEXT, 
	started_at DOUBLE, 
	ended_at DOUBLE, 
	mounted JSON NOT NULL, 
	confinement TEXT, 
	CONSTRAINT pk_rank_status PRIMARY KEY (name)
);
INSERT INTO "rank_status" VALUES('train-0','running',NULL,NULL,1760000001.5,NULL,'["/data"]','hard: cgroup-v2');
INSERT INTO "rank_status" VALUES('train-1','starting',NULL,NULL,NULL,NULL,'[]',NULL);
INSERT INTO "rank_status" VALUES('done-0','failed',3,'exit code 3',1.0,2.5,'[]',NULL);
CREATE TABLE reserved_blocks (
	node TEXT NOT NULL, 
	block INTEGER NOT NULL CONSTRAINT ck_reserved_blocks_block CHECK (block >= 0), 
	reservation TEXT NOT NULL, 
	CONSTRAINT pk_reserved_blocks PRIMARY KEY (node, block), 
	CONSTRAINT fk_reserved_blocks_node FOREIGN KEY(node) REFERENCES resources (address) ON DELETE RESTRICT, 
	CONSTRAINT fk_reserved_blocks_reservation FOREIGN KEY(reservation) REFERENCES resources (address) ON DELETE CASCADE
);
INSERT INTO "reserved_blocks" VALUES('node/gpu-0',0,'reservation/train-0');
INSERT INTO "reserved_blocks" VALUES('node/gpu-0',1,'reservation/train-0');
INSERT INTO "reserved_blocks" VALUES('node/gpu-1',0,'reservation/train-1');
CREATE TABLE resources (
	address TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	backend TEXT, 
	external_id TEXT, 
	inputs JSON NOT NULL, 
	outputs JSON NOT NULL, 
	generation INTEGER NOT NULL, detached_since DOUBLE PRECISION, 
	CONSTRAINT pk_resources PRIMARY KEY (address), 
	CONSTRAINT ck_resources_address CHECK (address = kind || '/' || name), 
	CONSTRAINT uq_resources_backend UNIQUE (backend, kind, external_id)
);
INSERT INTO "resources" VALUES('volume/data-0','volume','data-0','local','local:volume/data-0','{"region":"local","size":"10GB","tags":{"team":"ü"},"zone":null}','{"id":"local:volume/data-0"}',1,NULL);
INSERT INTO "resources" VALUES('volume/data-1','volume','data-1','local','local:volume/data-1','{"region":"local","size":"20GB","tags":{},"zone":null}','{"id":"local:volume/data-1"}',1,NULL);
INSERT INTO "resources" VALUES('node/gpu-0','node','gpu-0','local','local:node/gpu-0','{"blocks":4,"price":1.25,"region":"local","zone":"a"}','{"id":"local:node/gpu-0"}',1,NULL);
INSERT INTO "resources" VALUES('node/gpu-1','node','gpu-1','local','local:node/gpu-1','{"blocks":2,"price":null,"region":"local","zone":"a"}','{"id":"local:node/gpu-1"}',1,NULL);
INSERT INTO "resources" VALUES('reservation/train-0','reservation','train-0',NULL,NULL,'{"blocks":[0,1],"node":"gpu-0","rank":"train-0","total_blocks":4}','{}',1,NULL);
INSERT INTO "resources" VALUES('attachment/train-0.data-0','attachment','train-0.data-0','local','local:attachment/train-0.data-0','{"node":"gpu-0","path":"/data","rank":"train-0","volume":"data-0"}','{"id":"local:attachment/train-0.data-0"}',1,NULL);
INSERT INTO "resources" VALUES('rank/train-0','rank','train-0','local','local:rank/train-0','{"commands":["sleep 1"],"nodes":2,"task":"train"}','{"id":"local:rank/train-0"}',1,NULL);
INSERT INTO "resources" VALUES('reservation/train-1','reservation','train-1',NULL,NULL,'{"blocks":[0],"node":"gpu-1","rank":"train-1","total_blocks":2}','{}',1,NULL);
INSERT INTO "resources" VALUES('attachment/train-1.data-1','attachment','train-1.data-1','local','local:attachment/train-1.data-1','{"node":"gpu-1","path":"/data","rank":"train-1","volume":"data-1"}','{"id":"local:attachment/train-1.data-1"}',1,NULL);
INSERT INTO "resources" VALUES('rank/train-1','rank','train-1','local','local:rank/train-1','{"commands":["sleep 1"],"nodes":2,"task":"train"}','{"id":"local:rank/train-1"}',1,NULL);
INSERT INTO "resources" VALUES('rank/done-0','rank','done-0','local','local:rank/done-0','{"commands":["true"],"task":"done"}','{"id":"local:rank/done-0"}',1,NULL);
INSERT INTO "resources" VALUES('node/idle-0','node','idle-0','local','local:node/idle-0','{"blocks":1}','{"id":"local:node/idle-0"}',1,NULL);
INSERT INTO "resources" VALUES('volume/spare','volume','spare','local','v-spare','{"size":"10GB","zone":null}','{"id":"v-spare"}',1,1760000004.0);
CREATE TABLE writer_lock (
	id INTEGER NOT NULL CONSTRAINT ck_writer_lock_single CHECK (id = 1), 
	fence INTEGER NOT NULL, 
	owner TEXT, 
	host TEXT, 
	place TEXT, 
	pid INTEGER, 
	started TEXT, 
	doing TEXT, 
	since DOUBLE, 
	expires DOUBLE, 
	CONSTRAINT pk_writer_lock PRIMARY KEY (id)
);
INSERT INTO "writer_lock" VALUES(1,1,'6f1f6a51-6b0f-4a7e-9d2c-3a0a4e3c1b5d','elsewhere','elsewhere/boot/pid:[1]',4242,'77','apply',1760000000.0,1760000030.0);
CREATE UNIQUE INDEX uq_operations_open ON operations (address, op) WHERE ended_at IS NULL;
CREATE INDEX ix_needs_needed ON needs (needed);
CREATE INDEX ix_reserved_blocks_reservation ON reserved_blocks (reservation);
COMMIT;
